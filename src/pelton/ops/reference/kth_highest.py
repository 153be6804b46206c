"""Selection among many scores."""

import numpy as np

from pelton.ops.arrays import Float32

_CHUNK = 32
"""Scores that are first represented by their maximum."""


def kth_highest(scores: Float32, k: int) -> np.float32:
    """The k-th highest of scores [V], with 1 <= k <= V and no NaN; equal scores count each.

    At least k scores reach the k-th highest maximum of chunks, so only those that do need to be partitioned.
    """
    num_chunks = len(scores) // _CHUNK
    if k <= num_chunks:
        maxima = scores[: num_chunks * _CHUNK].reshape(num_chunks, _CHUNK).max(axis=1)
        scores = scores[scores >= np.partition(maxima, num_chunks - k)[num_chunks - k]]
    highest: np.float32 = np.partition(scores, len(scores) - k)[len(scores) - k]
    return highest
