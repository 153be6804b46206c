"""Reader of GGUF files, versions 2 and 3, over a memory map.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every count, length and offset is checked
against the file before it is used: a damaged file raises ValueError, whatever the damage.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pelton.error_text import check_name, shown
from pelton.loader.gguf.tensor_types import READABLE, TYPE_NAMES
from pelton.loader.model_files import MappedFile
from pelton.loader.stored_tensor import StoredTensor

MAGIC = b"GGUF"

MetadataValue = int | float | bool | str | list[str] | NDArray[Any]

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "<u1", 10: "<u8", 11: "<i8",
    12: "<f8",
}  # fmt: skip
_DTYPES = {number: np.dtype(layout) for number, layout in _SCALARS.items()}
_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")
_MAX_DIMENSIONS = 4
_MIN_METADATA_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a GGUF file."""

    type_name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as numpy has it (the file stores the reverse)."""
    offset: int
    """From the start of the file, in bytes."""


class GGUFFile:
    """Metadata and tensors of a GGUF file.

    `metadata` maps keys to values: numbers, booleans, strings, lists of strings, and numpy arrays for arrays
    of numbers. `tensors` maps names to infos. Raises ValueError for a file that is damaged or not GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path, "GGUF")
        self.metadata, self.tensors = _Reader(self._file).read_header()
        num_parts = self.metadata.get("split.count", 1)
        if not isinstance(num_parts, int) or num_parts > 1:
            self._file.fail(f"it is one of {shown(num_parts)} parts of a model; join them (llama-gguf-split --merge)")

    def tensor(self, name: str) -> StoredTensor:
        info = self.tensors[name]
        return StoredTensor(self._file, name, info.type_name, info.shape, info.offset, READABLE)


class _Reader:
    """A position in the file that only moves over bytes that are there."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._data = file.data
        self._size = len(file.data)
        self._position = 0

    def read_header(self) -> tuple[Mapping[str, MetadataValue], Mapping[str, TensorInfo]]:
        num_tensors, num_metadata = self._preamble()
        metadata: dict[str, MetadataValue] = {}
        for _ in range(num_metadata):
            key = self._name("the metadata key")
            if key in metadata:
                self._fail(f"the metadata key {key!r} occurs twice")
            metadata[key] = self._value(key)
        infos: dict[str, TensorInfo] = {}
        for _ in range(num_tensors):
            name = self._name("the tensor name")
            if name in infos:
                self._fail(f"the tensor {name!r} occurs twice")
            infos[name] = self._tensor_info(name)
        return metadata, self._place(infos, metadata.get("general.alignment", 32))

    def _preamble(self) -> tuple[int, int]:
        """Magic, version and counts: (number of tensors, number of metadata entries)."""
        if self._data[:4] != MAGIC:
            self._file.fail_at_start("it does not begin with GGUF")
        self._position = 4
        version = self._number(_UINT32, "the version")
        if version & 0xFFFF == 0 and version:
            self._fail("it is big-endian; convert it to little-endian")
        if version not in (2, 3):
            self._fail(f"it has version {version}, and Pelton reads 2 and 3")
        num_tensors = self._number(_UINT64, "the tensor count")
        num_metadata = self._number(_UINT64, "the metadata count")
        if num_metadata * _MIN_METADATA_BYTES + num_tensors * _MIN_TENSOR_BYTES > self._size - self._position:
            self._fail(f"it is too short for {num_metadata} metadata entries and {num_tensors} tensors")
        return num_tensors, num_metadata

    def _value(self, key: str) -> MetadataValue:
        what = f"the value of {key!r}"
        kind = self._number(_UINT32, what)
        if kind == _ARRAY:
            return self._array(what)
        if kind == _STRING:
            return self._string(what)
        values = self._numbers(kind, 1, what)
        return values.item()  # type: ignore[no-any-return]

    def _array(self, what: str) -> list[str] | NDArray[Any]:
        kind = self._number(_UINT32, what)
        count = self._number(_UINT64, what)
        if kind == _ARRAY:
            self._fail(f"{what} is an array of arrays, which Pelton does not read")
        if kind == _STRING:
            return self._strings(count, what)
        return self._numbers(kind, count, what)

    def _numbers(self, kind: int, count: int, what: str) -> NDArray[Any]:
        """`count` scalars of one type, as a view of the file; booleans as bool."""
        dtype = _DTYPES.get(kind)
        if dtype is None:
            self._fail(f"{what} has the unknown type {kind}")
        start = self._take(count * dtype.itemsize, what)
        values = np.frombuffer(self._data, dtype, count, start)
        if kind != _BOOL:
            return values
        if (values > 1).any():
            self._fail(f"{what} holds a boolean that is neither 0 nor 1")
        return values.astype(np.bool_)

    def _number(self, layout: struct.Struct, what: str) -> int:
        return int(layout.unpack_from(self._data, self._take(layout.size, what))[0])

    def _name(self, what: str) -> str:
        name = self._string(what)
        try:
            check_name(name)
        except ValueError as error:
            self._fail(str(error))
        return name

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _strings(self, count: int, what: str) -> list[str]:
        # This loop reads whole vocabularies: 100,000 strings in some 20 ms.
        strings = []
        data, position, end = self._data, self._position, self._size
        unpack = _UINT64.unpack_from
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(data, position)[0]
                if position > end:
                    self._fail_at_end(what)
                strings.append(data[start:position].decode())
        except UnicodeDecodeError:
            self._fail(f"{what} is not UTF-8")
        except struct.error:
            self._fail_at_end(what)
        self._position = position
        return strings

    def _tensor_info(self, name: str) -> TensorInfo:
        """One tensor info, its offset still relative to the data section."""
        what = f"the info of tensor {name!r}"
        num_dimensions = self._number(_UINT32, what)
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            self._fail(f"tensor {name!r} has {num_dimensions} dimensions, not 1 to {_MAX_DIMENSIONS}")
        shape = tuple(self._number(_UINT64, what) for _ in range(num_dimensions))[::-1]
        if 0 in shape:
            self._fail(f"tensor {name!r} has the empty shape {shape}")
        type_number = self._number(_UINT32, what)
        if type_number not in TYPE_NAMES:
            self._fail(f"tensor {name!r} has the unknown type {type_number}")
        return TensorInfo(TYPE_NAMES[type_number], shape, self._number(_UINT64, what))

    def _place(self, infos: Mapping[str, TensorInfo], alignment: MetadataValue) -> dict[str, TensorInfo]:
        """Make offsets absolute; check that every tensor lies, aligned, in the file, and that none overlap."""
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            self._fail(f"general.alignment is {shown(alignment)} and not a power of two")
        data_start = -(-self._position // alignment) * alignment
        placed = {}
        extents = []
        for name, info in infos.items():
            if info.offset % alignment:
                self._fail(f"tensor {name!r} is not aligned to {alignment} bytes")
            offset = data_start + info.offset
            end = offset + self._num_bytes(name, info)
            if end > self._size:
                self._fail_at_end(f"tensor {name!r}")
            placed[name] = replace(info, offset=offset)
            extents.append((offset, end, name))
        extents.sort()
        for (_, end, name), (offset, _, other) in pairwise(extents):
            if offset < end:
                self._fail(f"the tensors {name!r} and {other!r} overlap")
        return placed

    def _num_bytes(self, name: str, info: TensorInfo) -> int:
        """0 for types that Pelton cannot read: their sizes are unknown, and `StoredTensor.read` refuses them."""
        kind = READABLE.get(info.type_name)
        if kind is None:
            return 0
        if info.shape[-1] % kind.block_size:
            self._fail(f"tensor {name!r} has rows of {info.shape[-1]}, not whole blocks of {info.type_name}")
        return math.prod(info.shape) // kind.block_size * kind.block.itemsize

    def _take(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they begin."""
        start = self._position
        if size > self._size - start:
            self._fail_at_end(what)
        self._position = start + size
        return start

    def _fail_at_end(self, what: str) -> NoReturn:
        self._fail(f"{what} ends after the end of the file; it is cut short or damaged, so download it again")

    def _fail(self, problem: str) -> NoReturn:
        self._file.fail(problem)
