"""The tensor types of GGUF, and how the ones that Pelton reads become float32.

Block layouts: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml's `ggml-common.h`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import Float32

TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS",
    18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""Type number in a tensor info -> name, for every type there is."""


@dataclass(frozen=True)
class TensorType:
    """A type that Pelton reads."""

    block_size: int
    """Elements per block."""
    block: np.dtype[Any]
    """Layout of one block in the file."""
    dequantize: Callable[[NDArray[Any]], Float32]
    """Blocks [N] -> elements, N * block_size of them; raises ValueError if a scale is not finite."""


def _plain(values: NDArray[Any]) -> Float32:
    return values.astype(np.float32, copy=False)


def _scale(blocks: NDArray[Any], field: str) -> Float32:
    """The float16 `field` of every block, as float32 [N, 1]."""
    scale: Float32 = blocks[field].astype(np.float32)[:, None]
    if not np.isfinite(scale).all():
        raise ValueError("a block scale is not finite")
    return scale


def _dequantize_q8_0(blocks: NDArray[Any]) -> Float32:
    """d * q, q signed 8 bit."""
    out: Float32 = np.multiply(blocks["q"], _scale(blocks, "d"), dtype=np.float32)
    return out.reshape(-1)


def _dequantize_q4_1(blocks: NDArray[Any]) -> Float32:
    """d * q + m, q unsigned 4 bit: low nibbles are elements 0 to 15, high nibbles elements 16 to 31."""
    out = np.empty((len(blocks), 32), np.float32)
    out[:, :16] = blocks["q"] & 15
    out[:, 16:] = blocks["q"] >> 4
    out *= _scale(blocks, "d")
    out += _scale(blocks, "m")
    return out.reshape(-1)


READABLE = {
    "F32": TensorType(1, np.dtype("<f4"), _plain),
    "F16": TensorType(1, np.dtype("<f2"), _plain),
    "Q4_1": TensorType(32, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), _dequantize_q4_1),
    "Q8_0": TensorType(32, np.dtype([("d", "<f2"), ("q", "i1", 32)]), _dequantize_q8_0),
}
