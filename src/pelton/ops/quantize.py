"""Weights in eight and four bits, from floating point."""

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import FORMATS, Float16, Int4Rows

TOO_LARGE_FOR_INT4 = (
    "its numbers are too large for the float16 scales of int4; set quantization to int8 or none instead"
)
LARGEST_INT8 = np.float32(127.0)
_LARGEST_INT4 = np.float32(15.0)
SMALLEST_AMAX = np.float32(2.0**-100)
"""A group without a larger number counts as zeros: there 127 / amax would overflow before long."""


def quantize_int8(rows: Float32) -> tuple[NDArray[np.int8], Float32]:
    """rows [N, K], finite -> values [N, K] from -127 to 127, and a scale for each group, [N, ceil(K / 64)]."""
    padded = _padded(rows, FORMATS["int8"].group_size)
    amax = np.maximum(padded.max(axis=2), -padded.min(axis=2))
    is_zero = amax < SMALLEST_AMAX
    factors = LARGEST_INT8 / np.where(is_zero, np.float32(1.0), amax)
    factors[is_zero] = 0.0
    padded *= factors[:, :, None]
    np.rint(padded, out=padded)
    values = _unpadded(padded, rows.shape[1]).astype(np.int8)
    return values, np.where(is_zero, np.float32(0.0), amax / LARGEST_INT8)


def quantize_int4(rows: Float32) -> Int4Rows:
    """rows [N, K], finite -> four bits between the minimum and the maximum of each group.

    Raises ValueError for numbers that a float16 minimum or scale cannot hold.
    """
    size = FORMATS["int4"].group_size
    num_columns = rows.shape[1]
    starts = np.arange(0, num_columns, size)
    lowest = np.minimum.reduceat(rows, starts, axis=1)
    with np.errstate(over="ignore"):
        steps: Float32 = np.maximum.reduceat(rows, starts, axis=1) - lowest
    steps /= _LARGEST_INT4
    scales, minimums = to_float16(steps, lowest)
    wide_scales = scales.astype(np.float32)
    divisors = np.where(wide_scales == 0.0, np.float32(np.inf), wide_scales)
    groups = _padded(rows, size)
    groups -= minimums.astype(np.float32)[:, :, None]
    groups /= divisors[:, :, None]
    np.rint(groups, out=groups)
    np.clip(groups, 0.0, _LARGEST_INT4, out=groups)
    values = _unpadded(groups, num_columns).astype(np.uint8)
    return Int4Rows(values, scales, minimums)


def _padded(rows: Float32, group_size: int) -> Float32:
    """A copy of rows [N, K] in groups of columns [N, ceil(K / group_size), group_size], filled up with zeros."""
    num_rows, num_columns = rows.shape
    num_groups = -(-num_columns // group_size)
    padded = np.zeros((num_rows, num_groups * group_size), np.float32)
    padded[:, :num_columns] = rows
    return padded.reshape(num_rows, num_groups, group_size)


def _unpadded(groups: Float32, num_columns: int) -> Float32:
    """[N, G, group_size] -> [N, num_columns]."""
    num_rows, num_groups, group_size = groups.shape
    return groups.reshape(num_rows, num_groups * group_size)[:, :num_columns]


def to_float16(scales: Float32, minimums: Float32) -> tuple[Float16, Float16]:
    """Scales and minimums of int4, rounded. Raises ValueError for what is too large."""
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16), minimums.astype(np.float16)
    if not all(np.isfinite(array).all() for array in rounded):
        raise ValueError(TOO_LARGE_FOR_INT4)
    return rounded
