"""Reading a checkpoint's own configuration into `DecoderConfig`, by tables.

A format has one `ConfigTable` per architecture. A key that no table knows, or whose value Pelton does not
honour, is refused by name.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pelton.config import DecoderConfig
from pelton.error_text import shown

Fields = dict[str, Any]
"""What was read: fields of `DecoderConfig`, and the inputs that others are derived from."""

Derive = Callable[[Fields], Any]
"""A value that follows from what was read. Raises ValueError where it cannot."""

_SMALL, _LARGE = 1e-30, 1e30
"""Far beyond every honest constant; they and their inverses are normal numbers in float32."""
_LARGE_SIZE = 2**40
"""Far beyond every honest size, and exact in a float."""
_MAX_POSITIONS = 2**24
"""Rotary angles are products of float32 positions, which are exact up to here."""
_MAX_LAYERS = 1000
"""Tuples of this length, and as many layers, are made before anything is compared with the tensors: 6 MB at most."""
_MAX_KEY_NAMES = 300
_CONFIG_FIELDS = frozenset(declared.name for declared in dataclasses.fields(DecoderConfig))


@dataclass(frozen=True)
class Key:
    """Where one field or input comes from."""

    name: str
    """The checkpoint's name of it."""
    convert: Callable[[str, object], Any]
    """Name and value -> what is read. Raises ValueError that names the key."""
    default: Derive | None = None
    """The value of an absent key, from what stands above it in the table. Without one, the key is required."""
    null: Derive | None = None
    """The value of a null. Without one, a null is refused."""


@dataclass(frozen=True)
class ConfigTable:
    """All keys that the configuration of one architecture may have."""

    fields: Mapping[str, Key] = field(default_factory=dict)
    """Field of `DecoderConfig` -> key. Later entries may default to earlier ones."""
    inputs: Mapping[str, Key] = field(default_factory=dict)
    """The same for what is read only because something is derived from it. Fields come first."""
    derived: Mapping[str, Derive] = field(default_factory=dict)
    """Field of `DecoderConfig` -> how it follows from all that was read. It replaces one that was read."""
    same_as: Mapping[str, str] = field(default_factory=dict)
    """Key -> the field or input whose value it must repeat."""
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Key -> the only values that Pelton implements, the usual one first."""
    harmless: frozenset[str] = frozenset()
    """Keys that do not change what an inference engine computes."""
    read_elsewhere: frozenset[str] = frozenset()
    """Keys that other code reads."""

    def __post_init__(self) -> None:
        assert _CONFIG_FIELDS.issuperset({*self.fields, *self.derived}), "no field of DecoderConfig"
        assert _CONFIG_FIELDS.isdisjoint(self.inputs), "a field among the inputs"
        assert set(self.same_as.values()) <= {*self.fields, *self.inputs}, "nothing to be the same as"


def constant(value: object) -> Derive:
    return lambda _: value


def optional(name: str, convert: Callable[[str, object], Any]) -> Key:
    """A key that may be absent or null, which both mean None."""
    return Key(name, convert, constant(None), constant(None))


def head_size_default(fields: Fields) -> int:
    """Raises ValueError where the hidden size is not a multiple of the number of heads."""
    if fields["hidden_size"] % fields["num_heads"]:
        raise ValueError(
            f"hidden size {fields['hidden_size']} is not a multiple of {fields['num_heads']} attention heads"
        )
    return int(fields["hidden_size"] // fields["num_heads"])


def full_attention(fields: Fields) -> tuple[None, ...]:
    """`layer_windows` of a model without windows."""
    return (None,) * int(fields["num_layers"])


def periodic_windows(fields: Fields, period: int) -> tuple[int | None, ...]:
    """`layer_windows` where every `period`-th layer has full attention, as in Gemma 3."""
    return tuple(fields["sliding_window"] if (i + 1) % period else None for i in range(fields["num_layers"]))


def key_names(names: Iterable[str]) -> str:
    """Keys for a message, by name."""
    ordered = sorted(names)
    text = ", ".join(ordered)
    return text if len(text) <= _MAX_KEY_NAMES and text.isprintable() else shown(ordered)


def is_same(value: object, expected: object) -> bool:
    """Equality of plain values, where True is not 1."""
    if not isinstance(value, bool | int | float | str | None):
        return False
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def flag(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be true or false, got {shown(value)}")


def number(name: str, value: object) -> float:
    """A positive number that neither overflows nor vanishes in float32."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {shown(value)}")
    if _SMALL <= value <= _LARGE:
        return float(value)
    raise ValueError(f"{name} must be positive, from {_SMALL:g} to {_LARGE:g}, got {shown(value)}")


def size(name: str, value: object) -> int:
    return _integer(name, value, 1)


def count(name: str, value: object) -> int:
    return _integer(name, value, 0)


def read_fields(foreign: Mapping[str, object], table: ConfigTable, known: Fields | None = None) -> Fields:
    """The fields and inputs that `table` lists, on top of those that are `known` already.

    Raises ValueError that names the key: unknown, missing, of the wrong type, or not implemented.
    """
    keys = {**table.fields, **table.inputs}
    names = {key.name for key in keys.values()}
    unknown = set(foreign) - names - set(table.same_as) - set(table.fixed) - table.harmless - table.read_elsewhere
    if unknown:
        first = min(unknown)
        raise ValueError(
            f"Pelton does not know the key {key_names(unknown)}, so it cannot honour it "
            f"({key_names([first])} is {shown(foreign[first])}); "
            "if it changes nothing that the model computes, take it out"
        )
    for name, values in table.fixed.items():
        if name in foreign and not any(is_same(foreign[name], value) for value in values):
            raise ValueError(f"{name} is {shown(foreign[name])}, and Pelton implements only {values[0]!r}")
    fields = dict(known or {})
    for result, key in keys.items():
        fields[result] = _read_field(foreign, key, fields)
    for name, result in table.same_as.items():
        if foreign.get(name) is not None and not is_same(foreign[name], fields[result]):
            raise ValueError(f"{name} is {shown(foreign[name])}, and should be {result}, {fields[result]}")
    return fields


def build_config(architecture: str, table: ConfigTable, fields: Fields) -> DecoderConfig:
    """Derive what is left and check the whole. End-of-sequence tokens are told elsewhere, and come later.

    Raises ValueError for values that cannot be true.
    """
    if fields["num_layers"] > _MAX_LAYERS:
        raise ValueError(f"{fields['num_layers']} layers are announced, and Pelton builds up to {_MAX_LAYERS}")
    complete = {**fields, **{name: derive(fields) for name, derive in table.derived.items()}}
    if complete["max_position_embeddings"] > _MAX_POSITIONS:
        raise ValueError(
            f"the context length is {complete['max_position_embeddings']}, and Pelton computes positions "
            f"only up to {_MAX_POSITIONS}"
        )
    return DecoderConfig(
        architecture=architecture,
        eos_token_ids=(),
        **{name: value for name, value in complete.items() if name not in table.inputs},
    )


def check_eos_token_ids(key: str, token_ids: Collection[int], vocab_size: int) -> set[int]:
    """Raises ValueError for tokens outside the vocabulary."""
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"{key} has {shown(token_id)}, which is not below the vocabulary's size, {vocab_size}")
    return set(token_ids)


def _read_field(foreign: Mapping[str, object], key: Key, fields: Fields) -> Any:
    if key.name not in foreign:
        if key.default is None:
            raise ValueError(f"the key {key.name} is missing")
        return key.default(fields)
    value = foreign[key.name]
    if value is None and key.null is not None:
        return key.null(fields)
    return key.convert(key.name, value)


def _integer(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, got {shown(value)}")
    if isinstance(value, int) and low <= value < _LARGE_SIZE:
        return value
    raise ValueError(f"{name} must be an integer of at least {low} and below 2**40, got {shown(value)}")
