"""Reader of safetensors files over a memory map.

Format: https://huggingface.co/docs/safetensors. The library of that name gives no bfloat16 to numpy.
"""

import json
import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pelton.ops.arrays import Float32

_MAX_HEADER_BYTES = 100_000_000
_BF16 = "BF16"
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), _BF16: np.dtype("<u2")}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """From the start of the file, in bytes."""


class SafetensorsFile:
    """The tensors of one safetensors file: `tensors` maps names to infos.

    Raises ValueError for a file that is damaged or not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                header_size = int.from_bytes(file.read(8), "little")
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError:
            self._fail("it is empty")
        data_start = 8 + header_size
        if header_size > _MAX_HEADER_BYTES or data_start > len(self._data):
            self._fail(f"its header of {header_size} bytes ends after the end of the file")
        self.tensors = self._read_header(self._data[8:data_start], data_start)

    def read(self, name: str) -> Float32:
        """A tensor as float32, in its own shape; read-only where the file already holds float32.

        Raises ValueError for a type that Pelton cannot read.
        """
        info = self.tensors[name]
        dtype = _DTYPES.get(info.dtype)
        if dtype is None:
            raise ValueError(
                f"{self.path}: tensor {name} has type {info.dtype}, which Pelton cannot read yet; "
                f"readable: {', '.join(_DTYPES)}"
            )
        values = np.frombuffer(self._data, dtype, math.prod(info.shape), info.offset)
        if info.dtype == _BF16:
            # A bfloat16 is the upper half of a float32.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        out: Float32 = values.astype(np.float32, copy=False)
        return out.reshape(info.shape)

    def _read_header(self, header: bytes, data_start: int) -> Mapping[str, TensorInfo]:
        try:
            entries = json.loads(header, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            self._fail(f"its header is not JSON ({error})")
        if not isinstance(entries, dict):
            self._fail("its header is not a JSON object")
        return {name: self._info(name, entry, data_start) for name, entry in entries.items() if name != "__metadata__"}

    def _info(self, name: str, entry: object, data_start: int) -> TensorInfo:
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if all(
                type(size) is int and size >= 0 for size in shape
            ):
                pass
            case _:
                self._fail(f"the entry of tensor {name!r} is malformed")
        if not 0 <= begin <= end <= len(self._data) - data_start:
            self._fail(f"tensor {name!r} ends after the end of the file")
        if dtype in _DTYPES and math.prod(shape) * _DTYPES[dtype].itemsize != end - begin:
            self._fail(f"tensor {name!r} has {end - begin} bytes, which do not fit {dtype} {shape}")
        return TensorInfo(dtype, tuple(shape), data_start + begin)

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{self.path} is not a usable safetensors file: {problem}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries
