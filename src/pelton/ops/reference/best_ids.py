"""The most likely token of each row of logits."""

import numpy as np

from pelton.ops.arrays import Float32, Int32

INVALID_LOGITS = -1
"""Instead of a token id: the row has a NaN or +inf."""
NO_CANDIDATE = -2
"""Instead of a token id: every token is ruled out."""


def find_best(logits: Float32) -> Int32:
    """logits [L, V] -> [L]: the lowest id of the highest logit, or INVALID_LOGITS, or NO_CANDIDATE."""
    best = logits.argmax(axis=1)  # a NaN, if there is one
    highest = np.take_along_axis(logits, best[:, None], axis=1)[:, 0]
    codes = np.where(np.isneginf(highest), NO_CANDIDATE, INVALID_LOGITS)
    return np.where(np.isfinite(highest), best, codes).astype(np.int32)
