"""A linear layer over a packed weight, with bias and residual connection as its epilogue."""

from pelton.ops.arrays import Activations, Float32
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.reference.matmul import multiply


def linear(x: Activations, weight: PackedLinear, residual: Float32 | None, out: Float32) -> None:
    """x [T, K], weight [N, K], residual [T, N] -> out [T, N] = x @ weight.T + bias + residual.

    x has the dtype that goes with the weight's format; all sums are float32.
    """
    multiply(x, weight, out)
    if residual is not None:
        out += residual
