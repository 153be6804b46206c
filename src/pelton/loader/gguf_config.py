"""GGUF metadata -> `DecoderConfig`."""

from collections.abc import Collection, Mapping
from pathlib import Path

from pelton.config import DecoderConfig
from pelton.loader.foreign_config import (
    ConfigTable,
    Key,
    build_config,
    head_size_default,
    is_same,
    read_fields,
)
from pelton.loader.gguf import MetadataValue

_TABLES = {
    "llama": ConfigTable(
        fields={
            "vocab_size": Key("vocab_size", int),
            "hidden_size": Key("embedding_length", int),
            "intermediate_size": Key("feed_forward_length", int),
            "num_layers": Key("block_count", int),
            "num_heads": Key("attention.head_count", int),
            "num_kv_heads": Key("attention.head_count_kv", int, lambda fields: fields["num_heads"]),
            "head_size": Key("attention.key_length", int, head_size_default),
            "rms_norm_eps": Key("attention.layer_norm_rms_epsilon", float),
            "rope_theta": Key("rope.freq_base", float, lambda _: 10000.0),
            "max_position_embeddings": Key("context_length", int),
        },
        same_as={"attention.value_length": "head_size", "rope.dimension_count": "head_size"},
        fixed={},
        harmless=frozenset(),
    ),
}
"""`general.architecture` -> its keys, without the architecture's prefix."""

_FIXED = {"general.type": "model", "general.quantization_version": 2}
_REFUSED_PREFIXES = ("split.", "adapter.")
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_OUTPUT_HEAD = "output.weight"


def read_gguf_config(path: Path, metadata: Mapping[str, MetadataValue], tensor_names: Collection[str]) -> DecoderConfig:
    """Raises ValueError that names the file and the key that is missing, wrong or not implemented."""
    try:
        return _read(metadata, tensor_names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(metadata: Mapping[str, MetadataValue], tensor_names: Collection[str]) -> DecoderConfig:
    architecture = metadata.get("general.architecture")
    table = _TABLES.get(architecture) if isinstance(architecture, str) else None
    if table is None or not isinstance(architecture, str):
        raise ValueError(f"general.architecture is {architecture!r}, and Pelton runs {', '.join(_TABLES)}")
    for name, value in _FIXED.items():
        if name in metadata and not is_same(metadata[name], value):
            raise ValueError(f"{name} is {metadata[name]!r}, and Pelton reads only {value!r}")
    for name in metadata:
        if name.startswith(_REFUSED_PREFIXES):
            raise ValueError(f"it has the key {name}, and Pelton reads only whole models in one file")
    prefix = architecture + "."
    foreign: dict[str, object] = {
        name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)
    }
    # Files of older converters leave the vocabulary's size to its list.
    if "vocab_size" not in foreign and isinstance(tokens := metadata.get("tokenizer.ggml.tokens"), list):
        foreign["vocab_size"] = len(tokens)
    try:
        fields = read_fields(foreign, table)
    except ValueError as error:
        raise ValueError(f"in the {prefix}* metadata, {error}") from None
    fields["tie_word_embeddings"] = _OUTPUT_HEAD not in tensor_names
    return build_config(architecture, fields, _eos_token_ids(metadata), tensor_names)


def _eos_token_ids(metadata: Mapping[str, MetadataValue]) -> list[int]:
    token_ids = []
    for name in _EOS_KEYS:
        value = metadata.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            token_ids.append(value)
        elif value is not None:
            raise ValueError(f"{name} must be an integer, got {value!r}")
    return token_ids
