"""Random damage to files, for Hypothesis: to raw bytes, to JSON, to the entries of a GGUF file."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gguf
from hypothesis import strategies as st

_EDGES = [
    0, 1, 2, 3, 31, 32, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63,
    2**64 - 2, 2**64 - 1,
]  # fmt: skip
NUMBERS = st.sampled_from(_EDGES) | st.integers(0, 2**64 - 1)
PLACES = st.integers(0, 2**20)
"""An index, wrapped around the length of whatever it points into."""
LONG_TEXTS = st.builds(str.__mul__, st.sampled_from(["a", "é", "🙂", "\n"]), st.sampled_from([300, 10_000]))
TEXTS = st.one_of(
    st.sampled_from(["", " ", "\0", "a\nb", "\u202e", "<0x41>", "<s>", "llama", "gemma3", "bert", "gpt2", "{{ x }}"]),
    st.text(max_size=20),
    LONG_TEXTS,
)


@dataclass(frozen=True)
class Field:
    """A part of a file's structure: a count, a length, a type, a name, ..."""

    start: int
    size: int

    def replaced(self, content: bytes, value: bytes) -> bytes:
        value = value[: self.size]
        return content[: self.start] + value + content[self.start + len(value) :]


class Damage(Protocol):
    """Changes a file's content, whatever an earlier damage left of it. `fields` are those of the undamaged file."""

    def apply(self, content: bytes, fields: Sequence[Field]) -> bytes: ...


@dataclass(frozen=True)
class Replace:
    """Put `patch` in the place of `size` bytes. With no size it is inserted, with no patch bytes are deleted."""

    place: int
    size: int
    patch: bytes

    def apply(self, content: bytes, fields: Sequence[Field]) -> bytes:
        start = self.place % (len(content) + 1)
        return content[:start] + self.patch + content[start + self.size :]


@dataclass(frozen=True)
class Cut:
    place: int

    def apply(self, content: bytes, fields: Sequence[Field]) -> bytes:
        return content[: self.place % (len(content) + 1)]


@dataclass(frozen=True)
class SetNumber:
    field: int
    value: int

    def apply(self, content: bytes, fields: Sequence[Field]) -> bytes:
        numbers = [field for field in fields if field.size in (4, 8)]
        return numbers[self.field % len(numbers)].replaced(content, (self.value % 2**64).to_bytes(8, "little"))


_PLACES_NEAR_THE_HEADER = st.integers(0, 3000) | PLACES
_PATCHES = st.binary(max_size=8) | st.sampled_from([b"\0", b"\xff", b"\0" * 8, b"\xff" * 8, b"\x80", b"\n" * 40])
_ANYWHERE = [
    st.builds(Cut, _PLACES_NEAR_THE_HEADER),
    st.builds(Replace, _PLACES_NEAR_THE_HEADER, st.sampled_from([0, 1, 4, 8, 100]), _PATCHES),
    _PATCHES.flatmap(lambda patch: st.builds(Replace, _PLACES_NEAR_THE_HEADER, st.just(len(patch)), st.just(patch))),
]
RAW_DAMAGES: st.SearchStrategy[list[Damage]] = st.lists(
    st.builds(SetNumber, PLACES, NUMBERS) | st.one_of(_ANYWHERE), min_size=1, max_size=3
)


def damaged(content: bytes, damages: Sequence[Damage], fields: Sequence[Field]) -> bytes:
    for damage in damages:
        content = damage.apply(content, fields)
    return content


_HOLE = "\ue000hole\ue000"


@dataclass(frozen=True)
class Literal:
    """Put a text, JSON or not, in the place of a value."""

    place: int
    literal: str
    times: int = 1

    def apply(self, text: str) -> str:
        document = json.loads(text)
        container, key = _spot(document, self.place)
        container[key] = _HOLE
        return json.dumps(document).replace(json.dumps(_HOLE), self.literal * self.times)


@dataclass(frozen=True)
class Rename:
    """Put a value under another name, or take it out."""

    place: int
    name: str | None

    def apply(self, text: str) -> str:
        document = json.loads(text)
        container, key = _spot(document, self.place)
        value = container.pop(key)
        if self.name is not None and isinstance(container, dict):
            container[self.name] = value
        return json.dumps(document)


def _spot(document: Any, place: int) -> tuple[Any, Any]:
    """(container, key or index) of one of the values in a document."""
    spots = []
    containers = [document]
    while containers:
        container = containers.pop()
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            spots.append((container, key))
            if isinstance(value, dict | list):
                containers.append(value)
    return spots[place % len(spots)]


_CHOSEN_LITERALS = [
    "NaN", "-Infinity", "Infinity", "1e999", "-0", "0.5", "true", "false", "null", "{}", "[]", '""', '"\\ud800"',
    '"\\u0000"', '"a\\nb"', "[null,null]", "[1,2]", "[[0]]", '{"a":1,"a":2}', '{"a":{"b":[]}}', "tru", ",", "'a'",
]  # fmt: skip
_LITERALS = st.one_of(
    st.sampled_from(_CHOSEN_LITERALS),
    NUMBERS.map(str),
    st.integers(-3, 70).map(str),
    TEXTS.map(json.dumps),
)
JSONDamage = Literal | Rename
JSON_DAMAGES: st.SearchStrategy[JSONDamage] = st.one_of(
    st.builds(Literal, PLACES, _LITERALS),
    st.builds(Literal, PLACES, st.sampled_from(["[", '{"a":', "1", "-9", "[1],", " "]), st.sampled_from([400, 5000])),
    st.builds(Rename, PLACES, st.none() | TEXTS),
)


def gguf_string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


@dataclass(frozen=True)
class GGUFParts:
    """A GGUF file, taken apart by the format's own library."""

    fields: list[Field]
    metadata: dict[str, bytes]
    """Key -> type and value, as they stand in the file."""
    tensors: list[bytes]
    """The infos, as they stand in the file."""
    data: bytes

    @classmethod
    def of(cls, path: Path) -> "GGUFParts":
        reader = gguf.GGUFReader(path)
        content = path.read_bytes()
        begin = reader.data.ctypes.data
        infos = [tensor.field for tensor in reader.tensors]
        fields = [
            Field(part.ctypes.data - begin, part.nbytes)
            for field in [*reader.fields.values(), *infos]
            for part in field.parts
        ]
        keys = [field for key, field in reader.fields.items() if not key.startswith("GGUF.")]
        starts = [field.offset for field in [*keys, *infos]]
        ends = [*starts[1:], infos[-1].offset + sum(part.nbytes for part in infos[-1].parts)]
        blobs = [content[start:end] for start, end in zip(starts, ends, strict=True)]
        metadata = {key.name: blob[8 + len(key.name) :] for key, blob in zip(keys, blobs, strict=False)}
        return cls(fields, metadata, blobs[len(keys) :], content[reader.data_offset :])

    def assemble(self, change: "GGUFChange") -> bytes:
        """A well-formed file with other entries."""
        keys = list(self.metadata)
        entries = self.metadata.copy()
        for place, key, value in change.entries:
            key = keys[place % len(keys)] if key is None else key
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = self.metadata[keys[value % len(keys)]] if isinstance(value, int) else value
        pairs = list(entries.items())
        if change.twice is not None:
            pairs.append(pairs[change.twice % len(pairs)])
        tensors = [self.tensors[place % len(self.tensors)] for place in change.tensors] or self.tensors
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
        head += b"".join(gguf_string(key) + value for key, value in pairs) + b"".join(tensors)
        return head + bytes(-len(head) % 32) + self.data


@dataclass(frozen=True)
class GGUFChange:
    entries: Sequence[tuple[int, str | None, bytes | int | None]] = ()
    """(index of a key; a new key instead; type and value, or the index of the key that has them, or None: gone)"""
    twice: int | None = None
    tensors: Sequence[int] = ()
    """Indices of those that are left."""


_INTEGERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}


def _integer(kind: int, value: int) -> tuple[int, bytes]:
    return kind, value.to_bytes(8, "little")[: struct.calcsize(_INTEGERS[kind])]


_SCALARS = st.one_of(
    st.builds(_integer, st.sampled_from(list(_INTEGERS)), NUMBERS),
    st.builds(lambda value: (6, struct.pack("<f", value)), st.floats(width=32)),
    st.builds(lambda value: (12, struct.pack("<d", value)), st.floats()),
    st.builds(lambda value: (7, bytes([value])), st.sampled_from([0, 1, 2])),
    st.builds(lambda text: (8, gguf_string(text)), TEXTS),
)
"""(type number, bytes) of one value."""
_ARRAYS = st.builds(
    lambda value, count: struct.pack("<IIQ", 9, value[0], count) + value[1] * count,
    _SCALARS,
    st.sampled_from([0, 1, 2, 7, 24, 40]),
)
_VALUES = _ARRAYS | _SCALARS.map(lambda value: struct.pack("<I", value[0]) + value[1])
_NEW_KEYS = st.builds(
    str.__add__, st.sampled_from(["llama.", "tokenizer.ggml.", "general.", ""]), st.text(max_size=8) | LONG_TEXTS
)
_ENTRIES = st.one_of(
    st.tuples(PLACES, st.none(), _VALUES),
    st.tuples(PLACES, st.none(), PLACES | st.none()),
    st.tuples(PLACES, _NEW_KEYS, _VALUES),
)
GGUF_CHANGES = st.builds(
    GGUFChange,
    st.lists(_ENTRIES, min_size=1, max_size=3),
    st.one_of(st.none(), st.none(), PLACES),
    st.just(()) | st.lists(PLACES, max_size=4),
)
