"""Reading a checkpoint's own configuration into `DecoderConfig`, by tables.

A format has one `ConfigTable` per architecture. A key that no table knows, or whose value Pelton does not
honour, is refused by name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pelton.config import DecoderConfig

Fields = dict[str, Any]

_LARGE = 1e30
"""Far beyond every honest constant, and finite in float32."""
_LARGE_SIZE = 2**40
"""Far beyond every honest size, and exact in a float."""
_MAX_POSITIONS = 2**24
"""Rotary angles are products of float32 positions, which are exact up to here."""


@dataclass(frozen=True)
class Key:
    """Where one field of `DecoderConfig` comes from."""

    name: str
    """The checkpoint's name of it."""
    kind: type[int] | type[float] | type[bool]
    default: Callable[[Fields], Any] | None = None
    """The value of an absent key, from the fields above it in the table. Without one, the key is required."""


@dataclass(frozen=True)
class ConfigTable:
    """All keys that the configuration of one architecture may have."""

    fields: Mapping[str, Key]
    """Field of `DecoderConfig` -> key. Later entries may default to earlier ones."""
    same_as: Mapping[str, str]
    """Key -> the field whose value it must repeat."""
    fixed: Mapping[str, object]
    """Key -> the only value that Pelton implements."""
    harmless: frozenset[str]
    """Keys that do not change what an inference engine computes, or that are read elsewhere."""


def head_size_default(fields: Fields) -> int:
    """Raises ValueError where the hidden size is not a multiple of the number of heads."""
    if fields["hidden_size"] % fields["num_heads"]:
        raise ValueError(
            f"hidden size {fields['hidden_size']} is not a multiple of {fields['num_heads']} attention heads"
        )
    return int(fields["hidden_size"] // fields["num_heads"])


def is_same(value: object, expected: object) -> bool:
    """Equality of plain values, where True is not 1."""
    if not isinstance(value, bool | int | float | str | None):
        return False
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def read_fields(foreign: Mapping[str, object], table: ConfigTable) -> Fields:
    """The fields of `DecoderConfig` that `table` lists. A null value counts as absent.

    Raises ValueError that names the key: unknown, missing, of the wrong type, or not implemented.
    """
    names = {key.name for key in table.fields.values()}
    unknown = set(foreign) - names - set(table.same_as) - set(table.fixed) - table.harmless
    if unknown:
        raise ValueError(f"Pelton does not know the key {', '.join(sorted(unknown))}, so it cannot honour it")
    for name, value in table.fixed.items():
        if name in foreign and not is_same(foreign[name], value):
            raise ValueError(f"{name} is {foreign[name]!r}, and Pelton implements only {value!r}")
    fields: Fields = {}
    for field, key in table.fields.items():
        value = foreign.get(key.name)
        if value is not None:
            fields[field] = _convert(key.name, value, key.kind)
        elif key.default is not None:
            fields[field] = key.default(fields)
        else:
            raise ValueError(f"the key {key.name} is missing")
    for name, field in table.same_as.items():
        if name in foreign and not is_same(foreign[name], fields[field]):
            raise ValueError(f"{name} is {foreign[name]!r}, and should be {field}, {fields[field]}")
    return fields


def build_config(
    architecture: str, fields: Fields, eos_token_ids: Collection[int], tensor_names: Collection[str]
) -> DecoderConfig:
    """The configuration of a decoder with full attention in every layer.

    Raises ValueError for values that cannot be true of this checkpoint.
    """
    num_layers = fields["num_layers"]
    if num_layers > len(tensor_names):
        raise ValueError(f"{num_layers} layers are announced, but there are only {len(tensor_names)} tensors")
    if fields["max_position_embeddings"] > _MAX_POSITIONS:
        raise ValueError(
            f"the context length is {fields['max_position_embeddings']}, and Pelton computes positions "
            f"only up to {_MAX_POSITIONS}"
        )
    for token_id in eos_token_ids:
        if not 0 <= token_id < fields["vocab_size"]:
            raise ValueError(f"end-of-sequence token {token_id} is not below {fields['vocab_size']}")
    return DecoderConfig(
        architecture=architecture,
        eos_token_ids=tuple(sorted(set(eos_token_ids))),
        layer_windows=(None,) * num_layers,
        **fields,
    )


def _convert(name: str, value: object, kind: type[int] | type[float] | type[bool]) -> int | float | bool:
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ValueError(f"{name} must be true or false, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if kind is float:
        if 0.0 < value < _LARGE:
            return float(value)
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    if isinstance(value, int) and 1 <= value < _LARGE_SIZE:
        return value
    raise ValueError(f"{name} must be an integer of at least 1 and below 2**40, got {value!r}")
