"""config.json of a Hugging Face folder -> `DecoderConfig`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pelton.config import DecoderConfig
from pelton.error_text import in_file, shown
from pelton.loader.config_table import build_config, check_eos_token_ids, read_fields
from pelton.loader.hf.folder import CONFIG, GENERATION_CONFIG
from pelton.loader.hf.generation_config import read_generation_config
from pelton.loader.hf.tables import HF_CLASSES, QUANTIZATION_KEYS
from pelton.loader.text_files import is_there, read_json


def read_hf_config(folder: Path) -> DecoderConfig:
    """Raises ValueError that names the file and the key that is missing, wrong or not implemented."""
    path = folder / CONFIG
    if not is_there(path):
        raise ValueError(f"{folder} has no {CONFIG}, which says what the model is; copy it from the original")
    config = read_json(path)
    generation = read_generation_config(folder)
    with in_file(path):
        decoder = _read(config)
        token_ids = _eos_token_ids(config, decoder.vocab_size)
    with in_file(folder / GENERATION_CONFIG):
        token_ids |= _eos_token_ids(generation, decoder.vocab_size)
    return dataclasses.replace(decoder, eos_token_ids=tuple(sorted(token_ids)))


def _read(config: Mapping[str, Any]) -> DecoderConfig:
    if config.get("auto_map") is not None:
        raise ValueError("auto_map asks to run code from the checkpoint, which Pelton never does")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if "text_config" in config or (isinstance(name, str) and name.endswith("ForConditionalGeneration")):
        raise ValueError(
            f"architectures is {shown(names)}, with more than a text model in it, "
            "and Pelton reads only checkpoints of text models yet"
        )
    if not isinstance(name, str) or name not in HF_CLASSES:
        raise ValueError(f"architectures is {shown(names)}, and Pelton runs {', '.join(HF_CLASSES)}")
    hf_class = HF_CLASSES[name]
    if config.get("model_type") != hf_class.model_type:
        raise ValueError(f"model_type is {shown(config.get('model_type'))}, and {name} has {hf_class.model_type!r}")
    _refuse_quantized(config)
    rope = hf_class.rope
    fields = read_fields({name: value for name, value in config.items() if name not in rope.keys}, hf_class.table)
    fields |= rope.read(config, fields)
    return build_config(hf_class.architecture, hf_class.table, fields)


def _refuse_quantized(config: Mapping[str, Any]) -> None:
    for name in sorted(QUANTIZATION_KEYS):
        value = config.get(name)
        if value is not None:
            method = value.get("quant_method") if isinstance(value, dict) else None
            raise ValueError(
                f"the weights are quantized ({name}: {shown(method if isinstance(method, str) else value)}), "
                "and Pelton reads safetensors of 16 or 32 bits, or GGUF files; take the original model, or a GGUF file"
            )


def _eos_token_ids(content: Mapping[str, Any], vocab_size: int) -> set[int]:
    value = content.get("eos_token_id")
    token_ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(token_id) is not int for token_id in token_ids):
        raise ValueError(f"eos_token_id must be an integer or a list of integers, got {shown(value)}")
    return check_eos_token_ids("eos_token_id", token_ids, vocab_size)
