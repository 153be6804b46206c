"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

import numpy as np

from pelton.ops.arrays import BFLOAT16, Activations, Float32


def rms_norm(
    x: Float32, weight: Float32, eps: float, residual: Float32 | None, out_dtype: str, out: Activations
) -> None:
    """x [T, E], weight [E], residual [T, E] -> out [T, E] = weight * x / sqrt(mean(x**2) + eps) + residual.

    Computed in float32, and rounded at the end if out_dtype is bfloat16.
    """
    normed = np.empty(out.shape, np.float32) if out.dtype == BFLOAT16 else out
    normalize(x, weight, eps, normed)
    if residual is not None:
        normed += residual
    if normed is not out:
        out[...] = normed


def normalize(x: Float32, weight: Float32, eps: float, out: Float32) -> None:
    """x [..., E] -> out [..., E], over the last axis."""
    np.square(x, out=out)
    root = np.add.reduce(out, axis=-1, keepdims=True)
    root /= x.shape[-1]
    root += eps
    np.sqrt(root, out=root)
    np.divide(x, root, out=out)
    out *= weight
