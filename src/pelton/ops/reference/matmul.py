"""Products with packed weights, which several operators begin with."""

import numpy as np

from pelton.ops.arrays import Activations, Float32, Float64, widened
from pelton.ops.packed_linear import FORMATS, PackedLinear
from pelton.ops.reference.quantized_inputs import QuantizedInputs, grouped, quantize_inputs

_ROWS = 4096
"""Rows of a weight that are widened at a time: some megabytes, not a whole vocabulary's."""


def multiply(x: Activations, weight: PackedLinear, out: Float32) -> None:
    """x [T, K], weight [N, K] -> out [T, N] = x @ weight.T + bias, in float32. Of a gated weight, N is all its rows.

    A quantized weight (`int8`, `int4`) is multiplied with x rounded to integers, see `quantize_inputs`. The products of
    two groups are exact integers, which are scaled and added in float32, in order of the groups.
    """
    wide = widened(x)
    group_size = FORMATS[weight.format].group_size
    inputs = quantize_inputs(wide, group_size) if group_size > 1 else None
    for start in range(0, weight.num_rows, _ROWS):
        rows = slice(start, min(start + _ROWS, weight.num_rows))
        if inputs is not None:
            with np.errstate(invalid="ignore"):  # rows that are not finite
                out[:, rows] = _multiply_groups(inputs, weight, rows)
        elif weight.format == "fp32":
            np.matmul(wide, weight.rows[rows].T, out=out[:, rows])
        else:
            out[:, rows] = wide @ weight.widened(rows).T
    if weight.bias is not None:
        out += weight.bias


def _multiply_groups(inputs: QuantizedInputs, weight: PackedLinear, rows: slice) -> Float32:
    """-> [T, number of rows], where float64 stands for a fused multiply-add: its products are exact."""
    values = grouped(weight.rows[rows].astype(np.float32), FORMATS[weight.format].group_size)
    total = np.zeros((inputs.values.shape[1], values.shape[1]), np.float32)
    assert weight.scales is not None
    scales = weight.scales[rows].T.astype(np.float64)
    minimums = None if weight.minimums is None else weight.minimums[rows].T.astype(np.float64)
    for g, (ours, theirs, scale) in enumerate(
        zip(inputs.values, values, inputs.scales.astype(np.float64), strict=True)
    ):
        dots: Float64 = (ours @ theirs.T).astype(np.float64)
        dots *= scales[g]
        if minimums is not None:
            dots += minimums[g] * inputs.sums[g, :, None]
        dots = dots.astype(np.float32).astype(np.float64)
        dots *= scale[:, None]
        dots += total
        total = dots.astype(np.float32)
    return total
