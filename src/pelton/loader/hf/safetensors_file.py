"""Reader of safetensors files over a memory map.

Format: https://huggingface.co/docs/safetensors. The library of that name gives no bfloat16 to numpy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pelton.loader.model_files import MappedFile
from pelton.loader.plain_types import PLAIN_TYPES
from pelton.loader.stored_tensor import StoredTensor
from pelton.loader.text_files import parse_json

_MAX_HEADER_BYTES = 32_000_000
"""Of some 250,000 tensors. Parsed JSON may take forty times the memory of its text."""
_MAX_DIMENSIONS = 8
_MAX_ELEMENTS = 2**48


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    """From the start of the file, in bytes."""
    num_bytes: int


class SafetensorsFile:
    """The tensors of one safetensors file: `tensors` maps names to infos.

    Raises ValueError for a file that is damaged or not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path, "safetensors")
        data = self._file.data
        header_size = int.from_bytes(data[:8], "little")
        data_start = 8 + header_size
        if header_size > _MAX_HEADER_BYTES or data_start > len(data):
            self._file.fail_at_start(
                f"its header of {header_size} bytes ends after the end of the file, or is too large"
            )
        entries = self._entries(data[8:data_start])
        self.tensors = self._place({name: self._info(name, entry) for name, entry in entries.items()}, data_start)

    def tensor(self, name: str) -> StoredTensor:
        info = self.tensors[name]
        return StoredTensor(self._file, name, info.dtype, info.shape, info.offset, PLAIN_TYPES)

    def _entries(self, header: bytes) -> dict[str, Any]:
        """The header's entries of tensors, by name."""
        try:
            entries = parse_json(header.decode())
        except ValueError as error:
            self._file.fail_at_start(f"its header is not usable JSON ({error})")
        if not isinstance(entries.pop("__metadata__", {}), dict):
            self._file.fail("its __metadata__ is not a JSON object")
        return entries

    def _info(self, name: str, entry: object) -> TensorInfo:
        """One tensor, its offset still relative to the data section."""
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end], **rest} if not rest and all(
                type(number) is int and 0 <= number < 2**63 for number in (*shape, begin, end)
            ):
                pass
            case _:
                self._file.fail(f"the entry of tensor {name!r} is malformed")
        # Not the product itself: beside a size of zero, the others would go unchecked.
        if len(shape) > _MAX_DIMENSIONS or math.prod(max(size, 1) for size in shape) > _MAX_ELEMENTS:
            self._file.fail(f"tensor {name!r} has more than {_MAX_DIMENSIONS} dimensions or {_MAX_ELEMENTS} elements")
        if dtype in PLAIN_TYPES and math.prod(shape) * PLAIN_TYPES[dtype].block.itemsize != end - begin:
            self._file.fail(f"tensor {name!r} has {end - begin} bytes, which do not fit {dtype} {shape}")
        return TensorInfo(dtype, tuple(shape), begin, end - begin)

    def _place(self, infos: Mapping[str, TensorInfo], data_start: int) -> dict[str, TensorInfo]:
        """Make offsets absolute; check that the tensors fill the data section, without holes and overlaps."""
        filled = 0
        size = len(self._file.data) - data_start
        for name, info in sorted(infos.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
            end = info.offset + info.num_bytes
            if end > size:
                self._file.fail(
                    f"tensor {name!r} ends after the end of the file; it is cut short or damaged, so download it again"
                )
            if info.offset != filled or end < filled:
                self._file.fail(
                    f"tensor {name!r} has bytes {info.offset} to {end} of the data, and should begin at {filled}: "
                    "tensors neither overlap nor leave holes"
                )
            filled = end
        if filled != size:
            self._file.fail(f"its last tensor ends {size - filled} bytes before the end of the file")
        return {name: replace(info, offset=data_start + info.offset) for name, info in infos.items()}
