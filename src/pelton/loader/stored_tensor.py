"""Tensors as a checkpoint's file stores them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pelton.error_text import in_tensor, shown
from pelton.loader.model_files import MappedFile
from pelton.loader.plain_types import TensorType
from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Int4Rows


class StoredTensor:
    """One tensor of a mapped file. Matrices can be read in runs of rows, anything else as a whole."""

    def __init__(
        self,
        file: MappedFile,
        name: str,
        type_name: str,
        shape: tuple[int, ...],
        offset: int,
        readable: Mapping[str, TensorType],
    ) -> None:
        """`offset` is in bytes, from the start of the file, which has all of the tensor if its type is readable."""
        self.name = name
        self.type_name = type_name
        self.shape = shape
        """Outermost dimension first."""
        self._file = file
        self._offset = offset
        self._readable = readable

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def weight_format(self) -> str | None:
        """The narrowest format of packed weights that keeps it; None for a type that Pelton cannot read."""
        kind = self._readable.get(self.type_name)
        return None if kind is None else kind.weight_format

    def read(self, start: int = 0, stop: int | None = None) -> Float32:
        """Rows as float32, aligned; read-only where the file already holds float32.

        Raises ValueError that names file and tensor: for a type that Pelton cannot read, and for a scale that is not
        finite.
        """
        kind = self._kind()
        with in_tensor(self.path, self.name):
            values = kind.dequantize(self._blocks(kind, start, stop))
        shape = self.shape
        if len(shape) == 2:
            shape = (shape[0] if stop is None else stop) - start, shape[1]
        return np.require(values, requirements="A").reshape(shape)

    def read_int4(self, start: int, stop: int) -> Int4Rows:
        """Rows of a matrix whose `weight_format` is `int4`, as they are stored.

        Raises ValueError that names file and tensor for a scale that float16 does not hold.
        """
        kind = self._kind()
        with in_tensor(self.path, self.name):
            return kind.int4_rows(self._blocks(kind, start, stop), stop - start)

    def _kind(self) -> TensorType:
        kind = self._readable.get(self.type_name)
        if kind is None:
            raise ValueError(
                f"{self.path}: tensor {self.name!r} has type {shown(self.type_name)}, which Pelton cannot read "
                f"yet; readable: {', '.join(self._readable)}"
            )
        return kind

    def _blocks(self, kind: TensorType, start: int, stop: int | None) -> NDArray[Any]:
        if len(self.shape) != 2:
            assert (start, stop) == (0, None), f"{self.name} is no matrix, and read as a whole"
            return np.frombuffer(self._file.data, kind.block, math.prod(self.shape) // kind.block_size, self._offset)
        num_rows = (self.shape[0] if stop is None else stop) - start
        blocks_per_row = self.shape[1] // kind.block_size
        offset = self._offset + start * blocks_per_row * kind.block.itemsize
        return np.frombuffer(self._file.data, kind.block, num_rows * blocks_per_row, offset)
