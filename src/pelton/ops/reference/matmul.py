"""Products with packed weights, which several operators begin with."""

import numpy as np

from pelton.ops.arrays import Activations, Float32, widened
from pelton.ops.packed_linear import PackedLinear

_ROWS = 4096
"""Rows of a bfloat16 weight that are widened at a time: some megabytes, not a whole vocabulary's."""


def multiply(x: Activations, weight: PackedLinear, out: Float32) -> None:
    """x [T, K], weight [N, K] -> out [T, N] = x @ weight.T + bias, in float32. Of a gated weight, N is all its rows."""
    wide = widened(x)
    if weight.format == "fp32":
        np.matmul(wide, weight.rows.T, out=out)
    else:
        for start in range(0, weight.num_rows, _ROWS):
            rows = widened(weight.rows[start : start + _ROWS])
            out[:, start : start + _ROWS] = wide @ rows.T
    if weight.bias is not None:
        out += weight.bias
