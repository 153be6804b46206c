"""SwiGLU's activation (Shazeer 2020, arXiv:2002.05202)."""

import numpy as np

from pelton.ops.arrays import Float32

_LARGEST_EXPONENT = 88.0
"""exp of more overflows float32. Clamped there, silu is off by less than 1e-35."""


def gated_activation(gate_up: Float32, out: Float32) -> None:
    """gate_up [T, 2I] -> out [T, I] = silu(gate) * up, with silu(x) = x / (1 + exp(-x))."""
    size = out.shape[1]
    gate = gate_up[:, :size]
    np.negative(gate, out=out)
    np.minimum(out, _LARGEST_EXPONENT, out=out)
    np.exp(out, out=out)
    out += 1.0
    np.divide(gate, out, out=out)
    out *= gate_up[:, size:]
