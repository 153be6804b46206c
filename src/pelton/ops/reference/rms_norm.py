"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import numpy as np

from pelton.ops.arrays import Float32


def rms_norm(x: Float32, weight: Float32, eps: float, residual: Float32 | None, out: Float32) -> None:
    """x [..., E], weight [E], residual [..., E] -> out [..., E] = weight * x / sqrt(mean(x**2) + eps) + residual."""
    np.square(x, out=out)
    root = np.add.reduce(out, axis=-1, keepdims=True)
    root /= x.shape[-1]
    root += eps
    np.sqrt(root, out=root)
    np.divide(x, root, out=out)
    out *= weight
    if residual is not None:
        out += residual
