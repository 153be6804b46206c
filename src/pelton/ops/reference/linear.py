"""A linear layer over a packed weight, with bias and residual connection as its epilogue."""

import numpy as np

from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import PackedLinear


def linear(x: Float32, weight: PackedLinear, residual: Float32 | None, out: Float32) -> None:
    """x [T, K], weight [N, K], residual [T, N] -> out [T, N] = x @ weight.T + bias + residual."""
    np.matmul(x, weight.array.T, out=out)
    if weight.bias is not None:
        out += weight.bias
    if residual is not None:
        out += residual
