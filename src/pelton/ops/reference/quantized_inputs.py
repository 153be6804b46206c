"""Inputs of products with quantized weights, as integers."""

from typing import NamedTuple

import numpy as np

from pelton.ops.arrays import Float32
from pelton.ops.quantize import LARGEST_INT8, SMALLEST_AMAX


class QuantizedInputs(NamedTuple):
    """Rows [T, K] in G groups of columns. All integers are exact in float32."""

    values: Float32
    """[G, T, group size], integers from -127 to 127; zeros beyond K."""
    scales: Float32
    """[G, T]: an element is about its value times the scale."""
    sums: Float32
    """[G, T], of the values."""


def quantize_inputs(x: Float32, group_size: int) -> QuantizedInputs:
    """x [T, K] -> each group divided by its largest magnitude / 127, and rounded.

    A group with a NaN or an infinity has the scale NaN and values 0, and one of nothing but (nearly) zeros the scale 0:
    what comes of a row depends on no other.
    """
    groups = grouped(x, group_size)
    amax = np.abs(groups).max(axis=2)
    is_finite = np.isfinite(amax)
    is_used = is_finite & (amax >= SMALLEST_AMAX)
    divisors = np.where(is_used, amax, LARGEST_INT8)
    values = np.where(is_used[:, :, None], groups, np.float32(0.0))
    values *= (LARGEST_INT8 / divisors)[:, :, None]
    np.rint(values, out=values)
    scales = np.where(is_used, divisors / LARGEST_INT8, np.where(is_finite, np.float32(0.0), np.float32(np.nan)))
    return QuantizedInputs(values, scales, values.sum(axis=2))


def grouped(rows: Float32, group_size: int) -> Float32:
    """[N, K] -> [G, N, group_size], filled up with zeros."""
    num_rows, num_columns = rows.shape
    num_groups = -(-num_columns // group_size)
    padded = np.zeros((num_rows, num_groups * group_size), np.float32)
    padded[:, :num_columns] = rows
    return np.ascontiguousarray(padded.reshape(num_rows, num_groups, group_size).swapaxes(0, 1))
