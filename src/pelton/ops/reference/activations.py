"""Activations of gated feed-forward layers (Shazeer 2020, arXiv:2002.05202)."""

from typing import Literal, get_args

import numpy as np

from pelton.ops.arrays import Float32

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS = get_args(Activation)
_LARGEST_EXPONENT = 88.0
"""exp of more overflows float32. Clamped there, an activation is off by less than 1e-35."""
_LARGEST_CUBE = np.float32(1000.0)
"""Far beyond where gelu is 0 or x; cubes of much larger numbers overflow."""
_GELU_SLOPE = np.float32(2.0 * np.sqrt(2.0 / np.pi))
_GELU_CUBIC = np.float32(0.044715)


def gated(gate_up: Float32, activation: Activation, out: Float32) -> None:
    """gate_up [T, 2I] -> out [T, I] = activation(gate) * up.

    silu(x) = x / (1 + exp(-x)). gelu_tanh(x) = x / 2 * (1 + tanh(z)) with z = sqrt(2 / pi) * (x + 0.044715 * x**3)
    (Hendrycks and Gimpel 2016, arXiv:1606.08415), which is x / (1 + exp(-2 z)), and exact so for negative x too.
    """
    assert activation in ACTIVATIONS, activation
    size = out.shape[1]
    gate = gate_up[:, :size]
    if activation == "silu":
        np.negative(gate, out=out)
    else:
        _negative_gelu_exponent(gate, out)
    np.minimum(out, _LARGEST_EXPONENT, out=out)
    np.exp(out, out=out)
    out += 1.0
    np.divide(gate, out, out=out)
    out *= gate_up[:, size:]


def _negative_gelu_exponent(x: Float32, out: Float32) -> None:
    np.clip(x, -_LARGEST_CUBE, _LARGEST_CUBE, out=out)
    factor = out * out
    factor *= -_GELU_SLOPE * _GELU_CUBIC
    factor -= _GELU_SLOPE
    out *= factor
