"""Soft cap of logits (Gemma Team 2024, arXiv:2408.00118)."""

import numpy as np

from pelton.ops.arrays import Float32


def softcap(x: Float32, cap: float, out: Float32) -> None:
    """x [L, V] -> out [L, V] = cap * tanh(x / cap)."""
    np.divide(x, np.float32(cap), out=out)
    np.tanh(out, out=out)
    out *= np.float32(cap)
