"""What a type of tensors is to the loader, and the types without blocks, which all formats have."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Float16, Int4Rows, UInt8

_CHUNK_ELEMENTS = 2**18
"""Elements dequantized at a time: with their temporaries they stay in a core's second-level cache."""


@dataclass(frozen=True)
class TensorType:
    """A type that Pelton reads."""

    block_size: int
    """Elements per block."""
    block: np.dtype[Any]
    """Layout of one block in the file."""
    fill: Callable[[NDArray[Any], Float32], None] | None
    """Blocks [N] -> out [N, block_size]; raises ValueError if a scale is not finite. None: a block is a float32."""
    split_int4: Callable[[NDArray[Any]], tuple[UInt8, Float16, Float16]] | None = None
    """Of types that are much like `Int4Rows`. Blocks [N] -> values [N, block_size], and of each group of 32 scale and
    minimum [N, block_size / 32]; raises ValueError for those that float16 cannot hold."""

    @property
    def weight_format(self) -> str:
        """The narrowest format of packed weights that loses (almost) nothing of it."""
        if self.block_size == 1:
            return "bf16"
        return "int8" if self.split_int4 is None else "int4"

    def dequantize(self, blocks: NDArray[Any]) -> Float32:
        """Blocks [N] -> N * block_size elements; the blocks themselves where they are float32.

        Raises ValueError if a scale is not finite.
        """
        if self.fill is None:
            return blocks.astype(np.float32, copy=False)
        out = np.empty((len(blocks), self.block_size), np.float32)
        step = _CHUNK_ELEMENTS // self.block_size
        for start in range(0, len(blocks), step):
            self.fill(blocks[start : start + step], out[start : start + step])
        return out.reshape(-1)

    def int4_rows(self, blocks: NDArray[Any], num_rows: int) -> Int4Rows:
        """Blocks [num_rows * N] -> N * block_size columns. Raises ValueError for scales that are not finite."""
        assert self.split_int4 is not None
        values, scales, minimums = self.split_int4(blocks)
        return Int4Rows(values.reshape(num_rows, -1), scales.reshape(num_rows, -1), minimums.reshape(num_rows, -1))


def _fill_f16(blocks: NDArray[Any], out: Float32) -> None:
    out[:, 0] = blocks


def _fill_bf16(blocks: NDArray[Any], out: Float32) -> None:
    """A bfloat16 is the upper half of a float32."""
    bits = out.view(np.uint32)
    bits[:, 0] = blocks
    bits <<= 16


PLAIN_TYPES = {
    "F32": TensorType(1, np.dtype("<f4"), None),
    "F16": TensorType(1, np.dtype("<f2"), _fill_f16),
    "BF16": TensorType(1, np.dtype("<u2"), _fill_bf16),
}
