"""GGUF's blocks of 256 elements ("k quants"), as float32.

Each type has its layout as a dtype, and a function that fills out [N, 256] from N blocks. A block is cut into
groups, each with a small integer scale (and offset) of its own; `d` (and `dmin`) turn those into float32.
Results equal ggml's bit by bit: the order of the float32 operations matters.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pelton.loader.gguf.quants import scale
from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Float16
from pelton.ops.quantize import to_float16

Q2_K = np.dtype([("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)])
Q6_K = np.dtype([("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])

_Bytes = NDArray[np.uint8]


def fill_q2_k(blocks: NDArray[Any], out: Float32) -> None:
    """d * scale * q - dmin * offset, q of 2 bits, groups of 16: scales in low, offsets in high halves of bytes."""
    scales = blocks["scales"]
    out[...] = _spread(blocks["q"], 32, 2)
    _scale_groups(out, scale(blocks, "d") * (scales & 15), scale(blocks, "dmin") * (scales >> 4))


def fill_q3_k(blocks: NDArray[Any], out: Float32) -> None:
    """d * (scale - 32) * (q - 4), q of 3 bits, the third of them in `high`, groups of 16."""
    q = _spread(blocks["high"], 32, 1)
    q <<= 2
    q |= _spread(blocks["q"], 32, 2)
    q -= 4
    out[...] = q.view(np.int8)
    _scale_groups(out, scale(blocks, "d") * _q3_k_scales(blocks["scales"]))


def fill_q4_k(blocks: NDArray[Any], out: Float32) -> None:
    """d * scale * q - dmin * offset, q of 4 bits, groups of 32."""
    out[...] = _spread(blocks["q"], 32, 4)
    _scale_groups(out, *_scales_and_offsets(blocks))


def split_q4_k(blocks: NDArray[Any]) -> tuple[_Bytes, Float16, Float16]:
    """Values, scales d * scale and minimums -dmin * offset, rounded."""
    scales, offsets = _scales_and_offsets(blocks)
    return _spread(blocks["q"], 32, 4), *to_float16(scales, -offsets)


def fill_q5_k(blocks: NDArray[Any], out: Float32) -> None:
    """d * scale * q - dmin * offset, q of 5 bits, the fifth of them in `high`, groups of 32."""
    q = _spread(blocks["high"], 32, 1)
    q <<= 4
    q |= _spread(blocks["q"], 32, 4)
    out[...] = q
    _scale_groups(out, *_scales_and_offsets(blocks))


def fill_q6_k(blocks: NDArray[Any], out: Float32) -> None:
    """d * scale * (q - 32), q of 6 bits, the upper two of them in `high`, groups of 16."""
    q = _spread(blocks["high"], 32, 2)
    q <<= 4
    q |= _spread(blocks["q"], 64, 4)
    q -= 32
    out[...] = q.view(np.int8)
    _scale_groups(out, scale(blocks, "d") * blocks["scales"])


def _spread(packed: _Bytes, run: int, bits: int) -> _Bytes:
    """Bytes that hold several elements -> one byte per element: [N, 256].

    The first `run` bytes hold elements 0 to run - 1 in their lowest bits, the next `run` elements in the bits above,
    and so on; then come the next `run` bytes.
    """
    num_blocks, num_bytes = packed.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    elements = packed.reshape(num_blocks, num_bytes // run, 1, run) >> shifts
    elements &= (1 << bits) - 1
    return elements.reshape(num_blocks, 256)


def _scale_groups(out: Float32, scales: Float32, offsets: Float32 | None = None) -> None:
    """Multiply each group by its scale and subtract its offset; both are [N, number of groups]."""
    groups = out.reshape(*scales.shape, -1)
    groups *= scales[:, :, None]
    if offsets is not None:
        groups -= offsets[:, :, None]


def _scales_and_offsets(blocks: NDArray[Any]) -> tuple[Float32, Float32]:
    """Those of Q4_K and Q5_K, [N, 8] each: 8 of each, of 6 bits, in 12 bytes.

    Bytes 0 to 3 and 4 to 7 hold scales and offsets 0 to 3 in their lower six bits. The others' lower four bits are
    the halves of bytes 8 to 11, their upper two those of bytes 0 to 7.
    """
    packed = blocks["scales"]
    low = packed[:, :8]
    high = (low >> 2) & 0x30
    scales = np.concatenate([low[:, :4] & 63, (packed[:, 8:] & 15) | high[:, :4]], axis=1)
    offsets = np.concatenate([low[:, 4:] & 63, (packed[:, 8:] >> 4) | high[:, 4:]], axis=1)
    return scale(blocks, "d") * scales, scale(blocks, "dmin") * offsets


def _q3_k_scales(packed: _Bytes) -> NDArray[np.int8]:
    """16 signed scales [N, 16] from 12 bytes: lower four bits in bytes 0 to 7, upper two in bytes 8 to 11."""
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    high = np.concatenate([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales: _Bytes = (low | (high << 4)) - np.uint8(32)
    return scales.view(np.int8)
