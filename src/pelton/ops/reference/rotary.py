"""Angles of the rotary position embedding (Su et al. 2021, arXiv:2104.09864)."""

import numpy as np

from pelton.ops.arrays import Float32, Int32


def rotary(positions: Int32, frequencies: Float32, factor: float, cos: Float32, sin: Float32) -> None:
    """positions [T], frequencies [D / 2] -> cos and sin [T, D / 2] of position * frequency, times factor.

    The angle is a product of float32 numbers, as Hugging Face computes it: at far positions a more exact angle
    would be a different one.
    """
    angles = positions.astype(np.float32)[:, None] * frequencies
    np.cos(angles, out=cos)
    np.sin(angles, out=sin)
    if factor != 1.0:
        cos *= np.float32(factor)
        sin *= np.float32(factor)
