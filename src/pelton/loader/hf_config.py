"""config.json of a Hugging Face folder -> `DecoderConfig`."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pelton.config import DecoderConfig
from pelton.loader.foreign_config import (
    ConfigTable,
    Key,
    build_config,
    head_size_default,
    is_same,
    read_fields,
)
from pelton.loader.text_files import read_json

_HARMLESS = frozenset({
    "_attn_implementation_autoset", "_name_or_path", "architectures", "attention_dropout", "bos_token_id",
    "dtype", "eos_token_id", "initializer_range", "is_llama_config", "model_type", "output_attentions",
    "output_hidden_states", "pad_token_id", "return_dict", "torch_dtype", "transformers.js_config",
    "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache",
})  # fmt: skip
"""Training, provenance, outputs of another library, and what is read elsewhere (such as token ids)."""

_TABLES = {
    "LlamaForCausalLM": (
        "llama",
        ConfigTable(
            fields={
                "vocab_size": Key("vocab_size", int),
                "hidden_size": Key("hidden_size", int),
                "intermediate_size": Key("intermediate_size", int),
                "num_layers": Key("num_hidden_layers", int),
                "num_heads": Key("num_attention_heads", int),
                "num_kv_heads": Key("num_key_value_heads", int, lambda fields: fields["num_heads"]),
                "head_size": Key("head_dim", int, head_size_default),
                "rms_norm_eps": Key("rms_norm_eps", float),
                "rope_theta": Key("rope_theta", float, lambda _: 10000.0),
                "max_position_embeddings": Key("max_position_embeddings", int),
                "tie_word_embeddings": Key("tie_word_embeddings", bool, lambda _: False),
            },
            same_as={},
            fixed={
                "attention_bias": False,
                "hidden_act": "silu",
                "mlp_bias": False,
                "partial_rotary_factor": 1.0,
                "pretraining_tp": 1,
                "rope_interleaved": False,
                "rope_scaling": None,
            },
            harmless=_HARMLESS,
        ),
    ),
}
"""Class in `architectures` -> (key of Pelton's model registry, keys)."""

_ROPE_FIXED = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0}


def read_hf_config(folder: Path, tensor_names: Collection[str]) -> DecoderConfig:
    """Raises ValueError that names the file and the key that is missing, wrong or not implemented."""
    path = folder / "config.json"
    config = read_json(path)
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    try:
        return _read(config, generation, tensor_names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(config: Mapping[str, Any], generation: Mapping[str, Any], tensor_names: Collection[str]) -> DecoderConfig:
    if "auto_map" in config:
        raise ValueError("auto_map asks to run code from the checkpoint, which Pelton never does")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    if not isinstance(name, str) or name not in _TABLES:
        raise ValueError(f"architectures is {names!r}, and Pelton runs {', '.join(_TABLES)}")
    architecture, table = _TABLES[name]
    if config.get("model_type") != architecture:
        raise ValueError(f"model_type is {config.get('model_type')!r}, and {name} has {architecture!r}")
    fields = read_fields(_flatten_rope(config), table)
    eos_token_ids = {*_token_ids(config), *_token_ids(generation)}
    return build_config(architecture, fields, eos_token_ids, tensor_names)


def _flatten_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Spell `rope_parameters` of transformers 5 as the `rope_theta` of the versions before."""
    flat = dict(config)
    rope = flat.pop("rope_parameters", None)
    if rope is None:
        return flat
    if not isinstance(rope, dict):
        raise ValueError(f"rope_parameters must be an object, got {rope!r}")
    for name, value in rope.items():
        if name == "rope_theta":
            if flat.setdefault(name, value) != value:
                raise ValueError(f"rope_theta is {flat[name]!r}, but {value!r} in rope_parameters")
        elif name not in _ROPE_FIXED:
            raise ValueError(f"Pelton does not know the key {name} of rope_parameters")
        elif not is_same(value, _ROPE_FIXED[name]):
            raise ValueError(
                f"{name} of rope_parameters is {value!r}, and Pelton implements only {_ROPE_FIXED[name]!r}"
            )
    return flat


def _token_ids(config: Mapping[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    token_ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(token_id) is not int for token_id in token_ids):
        raise ValueError(f"eos_token_id must be an integer or a list of integers, got {value!r}")
    return token_ids
