"""GGUF metadata -> `DecoderConfig`."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from pelton.config import DecoderConfig
from pelton.error_text import in_file, shown
from pelton.loader.config_table import ConfigTable, Fields, build_config, is_same, read_fields
from pelton.loader.gguf.end_tokens import end_token_ids
from pelton.loader.gguf.file import MetadataValue
from pelton.loader.gguf.rope import SCALING_PREFIX, read_rope
from pelton.loader.gguf.tables import GGUF_ARCHITECTURES
from pelton.loader.gguf.vocabulary_keys import TOKENS

_GENERAL_FIXED = {"general.type": "model", "general.quantization_version": 2}
_ADAPTER_PREFIX = "adapter."
_PER_LAYER = ("feed_forward_length", "attention.head_count", "attention.head_count_kv")
"""Keys that may hold an array with one number for each layer."""
_OUTPUT_HEAD = "output.weight"


def read_gguf_config(path: Path, metadata: Mapping[str, MetadataValue], tensor_names: Collection[str]) -> DecoderConfig:
    """Raises ValueError that names the file and the key that is missing, wrong or not implemented."""
    with in_file(path):
        return _read(metadata, tensor_names)


def _read(metadata: Mapping[str, MetadataValue], tensor_names: Collection[str]) -> DecoderConfig:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_ARCHITECTURES:
        known = ", ".join(GGUF_ARCHITECTURES)
        raise ValueError(f"general.architecture is {shown(architecture)}, and Pelton runs {known}")
    for name, value in _GENERAL_FIXED.items():
        if name in metadata and not is_same(metadata[name], value):
            raise ValueError(f"{name} is {shown(metadata[name])}, and Pelton reads only {value!r}")
    for name in metadata:
        if name.startswith(_ADAPTER_PREFIX):
            raise ValueError(f"it has the key {name}, as adapters have, and Pelton reads only whole models")
    described = GGUF_ARCHITECTURES[architecture]
    try:
        fields = _read_architecture(metadata, architecture + ".", described.table, tensor_names)
    except ValueError as error:
        raise ValueError(f"in the {architecture}.* metadata, {error}") from None
    fields["tie_word_embeddings"] = _OUTPUT_HEAD not in tensor_names
    for field, projections in described.biases.items():
        fields[field] = any(f"blk.0.{projection}.bias" in tensor_names for projection in projections)
    config = build_config(architecture, described.table, fields)
    return dataclasses.replace(config, eos_token_ids=tuple(sorted(end_token_ids(metadata, config.vocab_size))))


def _read_architecture(
    metadata: Mapping[str, MetadataValue], prefix: str, table: ConfigTable, tensor_names: Collection[str]
) -> Fields:
    """What the keys with this prefix say."""
    foreign: dict[str, object] = {
        name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)
    }
    # Files of older converters leave the vocabulary's size to its list.
    if "vocab_size" not in foreign and isinstance(tokens := metadata.get(TOKENS), list):
        foreign["vocab_size"] = len(tokens)
    for name in _PER_LAYER:
        if isinstance(value := foreign.get(name), np.ndarray):
            foreign[name] = _common_value(name, value, foreign.get("block_count"))
    scaling_names = [name for name in foreign if name.startswith(SCALING_PREFIX)]
    scaling = {name.removeprefix(SCALING_PREFIX): foreign.pop(name) for name in scaling_names}
    fields = read_fields(foreign, table)
    return fields | read_rope(scaling, fields, tensor_names)


def _common_value(name: str, values: np.ndarray, num_layers: object) -> object:
    """The number that all layers share."""
    if not len(values) or not is_same(num_layers, len(values)):
        raise ValueError(f"{name} has {len(values)} entries for {shown(num_layers)} layers")
    if (values != values[0]).any():
        raise ValueError(f"{name} differs between layers, which Pelton does not run")
    return values[0].item()
