"""GGUF's blocks of 32 elements, as float32.

Each type has its layout as a dtype, and a function that fills out [N, 32] from N blocks. `d` is the scale and `m`
the offset of a block. Where bytes hold two elements, the low halves are elements 0 to 15, the high ones 16 to 31.
Results equal ggml's bit by bit: the order of the float32 operations matters.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Float16, UInt8
from pelton.ops.quantize import to_float16

Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def scale(blocks: NDArray[Any], field: str) -> Float32:
    """The float16 `field` of every block, as float32 [N, 1]. Raises ValueError if one is not finite."""
    scales: Float32 = blocks[field].astype(np.float32)[:, None]
    if not np.isfinite(scales).all():
        raise ValueError("a block scale is not finite, so the file is damaged")
    return scales


def fill_q4_0(blocks: NDArray[Any], out: Float32) -> None:
    """d * (q - 8), q of 4 bits."""
    q = _low_bits(blocks)
    q -= 8
    out[...] = q.view(np.int8)
    out *= scale(blocks, "d")


def fill_q4_1(blocks: NDArray[Any], out: Float32) -> None:
    """d * q + m, q of 4 bits."""
    out[...] = _low_bits(blocks)
    out *= scale(blocks, "d")
    out += scale(blocks, "m")


def fill_q5_0(blocks: NDArray[Any], out: Float32) -> None:
    """d * (q - 16), q of 5 bits."""
    q = _five_bits(blocks)
    q -= 16
    out[...] = q.view(np.int8)
    out *= scale(blocks, "d")


def fill_q5_1(blocks: NDArray[Any], out: Float32) -> None:
    """d * q + m, q of 5 bits."""
    out[...] = _five_bits(blocks)
    out *= scale(blocks, "d")
    out += scale(blocks, "m")


def fill_q8_0(blocks: NDArray[Any], out: Float32) -> None:
    """d * q, q signed."""
    out[...] = blocks["q"]
    out *= scale(blocks, "d")


def split_q4_0(blocks: NDArray[Any]) -> tuple[UInt8, Float16, Float16]:
    """Values, scales d, and minimums -8 * d, which float16 has exactly."""
    scales = scale(blocks, "d")
    return _low_bits(blocks), *to_float16(scales, -8.0 * scales)


def split_q4_1(blocks: NDArray[Any]) -> tuple[UInt8, Float16, Float16]:
    """Values, scales d, minimums m."""
    return _low_bits(blocks), *to_float16(scale(blocks, "d"), scale(blocks, "m"))


def _low_bits(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """The four bits of each element that `q` holds: [N, 32]."""
    q = np.empty((len(blocks), 32), np.uint8)
    np.bitwise_and(blocks["q"], 15, out=q[:, :16])
    np.right_shift(blocks["q"], 4, out=q[:, 16:])
    return q


def _five_bits(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """All bits of each element, the fifth in the order of the elements in `high`: [N, 32]."""
    q = np.unpackbits(blocks["high"], axis=1, bitorder="little")
    q <<= 4
    q |= _low_bits(blocks)
    return q
