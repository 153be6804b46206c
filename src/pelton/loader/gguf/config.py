"""GGUF metadata -> `DecoderConfig`."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from pelton.config import DecoderConfig
from pelton.loader.foreign_config import ConfigTable, Fields, build_config, check_eos_token_ids, is_same, read_fields
from pelton.loader.foreign_names import shown
from pelton.loader.gguf.file import MetadataValue
from pelton.loader.gguf.rope import SCALING_PREFIX, read_rope
from pelton.loader.gguf.tables import GGUF_TABLES

_GENERAL_FIXED = {"general.type": "model", "general.quantization_version": 2}
_REFUSED_PREFIXES = ("split.", "adapter.")
_PER_LAYER = ("feed_forward_length", "attention.head_count", "attention.head_count_kv")
"""Keys that may hold an array with one number for each layer."""
_BIASES = {
    "attention_bias": ("attn_q", "attn_k", "attn_v"),
    "attention_output_bias": ("attn_output",),
    "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
}
"""Field -> projections of a block. Only the tensors say whether there are biases."""
_OUTPUT_HEAD = "output.weight"

_TOKENS, _TOKEN_TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_CONTROL = 3
"""Token type of what is no text."""
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
_TURN_ENDS = frozenset({
    "<|eot_id|>",  # Llama 3
    "<|eom_id|>",  # Llama 3.1, before it waits for a tool
    "<|im_end|>",  # ChatML: Qwen, SmolLM2 and many more
    "<end_of_turn>",  # Gemma
    "<|end|>",  # Phi
    "<|end_of_turn|>",  # OpenChat
    "<|END_OF_TURN_TOKEN|>",  # Command R
    "<EOT>",  # DeepSeek Coder and others of its time
})  # fmt: skip
"""Control tokens that end a turn of a chat. Models emit them although many files name only the token that ends a
document, and a GGUF file has no generation_config.json that would list both."""


def read_gguf_config(path: Path, metadata: Mapping[str, MetadataValue], tensor_names: Collection[str]) -> DecoderConfig:
    """Raises ValueError that names the file and the key that is missing, wrong or not implemented."""
    try:
        return _read(metadata, tensor_names)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read(metadata: Mapping[str, MetadataValue], tensor_names: Collection[str]) -> DecoderConfig:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_TABLES:
        raise ValueError(f"general.architecture is {shown(architecture)}, and Pelton runs {', '.join(GGUF_TABLES)}")
    for name, value in _GENERAL_FIXED.items():
        if name in metadata and not is_same(metadata[name], value):
            raise ValueError(f"{name} is {shown(metadata[name])}, and Pelton reads only {value!r}")
    for name in metadata:
        if name.startswith(_REFUSED_PREFIXES):
            raise ValueError(f"it has the key {name}, and Pelton reads only whole models in one file")
    table = GGUF_TABLES[architecture]
    try:
        fields = _read_architecture(metadata, architecture + ".", table, tensor_names)
    except ValueError as error:
        raise ValueError(f"in the {architecture}.* metadata, {error}") from None
    fields["tie_word_embeddings"] = _OUTPUT_HEAD not in tensor_names
    for field, projections in _BIASES.items():
        fields[field] = any(f"blk.0.{projection}.bias" in tensor_names for projection in projections)
    config = build_config(architecture, table, fields, len(tensor_names))
    return dataclasses.replace(config, eos_token_ids=tuple(sorted(_eos_token_ids(metadata, config.vocab_size))))


def _read_architecture(
    metadata: Mapping[str, MetadataValue], prefix: str, table: ConfigTable, tensor_names: Collection[str]
) -> Fields:
    """What the keys with this prefix say."""
    foreign: dict[str, object] = {
        name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)
    }
    # Files of older converters leave the vocabulary's size to its list.
    if "vocab_size" not in foreign and isinstance(tokens := metadata.get(_TOKENS), list):
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


def _eos_token_ids(metadata: Mapping[str, MetadataValue], vocab_size: int) -> set[int]:
    token_ids: set[int] = set()
    for name in _EOS_KEYS:
        value = metadata.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            token_ids |= check_eos_token_ids(name, [value], vocab_size)
        elif value is not None:
            raise ValueError(f"{name} must be an integer, got {shown(value)}")
    return token_ids | check_eos_token_ids(_TOKENS, _turn_ends(metadata), vocab_size)


def _turn_ends(metadata: Mapping[str, MetadataValue]) -> list[int]:
    tokens, types = metadata.get(_TOKENS), metadata.get(_TOKEN_TYPES)
    if tokens is None or types is None:
        return []
    if not isinstance(tokens, list) or not isinstance(types, np.ndarray) or len(tokens) != len(types):
        raise ValueError(f"{_TOKENS} and {_TOKEN_TYPES} must be lists of the same length")
    return [i for i, token in enumerate(tokens) if token in _TURN_ENDS and types[i] == _CONTROL]
