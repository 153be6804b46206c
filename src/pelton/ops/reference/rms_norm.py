"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import numpy as np

from pelton.ops.arrays import Float32


def rms_norm(x: Float32, weight: Float32, eps: float, out: Float32) -> None:
    """x [T, E], weight [E] -> out [T, E] = weight * x / sqrt(mean(x**2) + eps)."""
    np.square(x, out=out)
    root = np.add.reduce(out, axis=-1, keepdims=True)
    root /= x.shape[-1]
    root += eps
    np.sqrt(root, out=root)
    np.divide(x, root, out=out)
    out *= weight
