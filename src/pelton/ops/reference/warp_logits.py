"""The logits whose softmax the sampler draws from."""

import numpy as np

from pelton.ops.arrays import Float32, Int32
from pelton.ops.reference.candidates import find_candidates

_LOWEST = np.finfo(np.float32).min


def warp_logits(
    logits: Float32,
    edited: Float32,
    edit_index: Int32,
    warpers: Float32,
    num_logprobs: Int32,
    warped: Float32,
) -> None:
    """The scores of `sample`'s rows, divided by the temperature, -inf for all but its candidates: warped [L, V].

    Only rows whose num_logprobs [L] is not -1 are computed; others are undefined. Rows of temperature 0, rows with NaN
    or +inf, and rows without a candidate are copies. Where the temperature is so low that the highest quotient
    overflows, all are shifted to make it 0; a candidate is at least the lowest float32.
    """
    for row in np.flatnonzero(num_logprobs >= 0).tolist():
        scores = logits[row] if edit_index[row] < 0 else edited[row]
        highest, temperature = scores.max(), warpers[row, 0]
        if temperature == 0.0 or not np.isfinite(highest):
            np.copyto(warped[row], scores)
            continue
        ids, _ = find_candidates(scores, highest, warpers[row])
        candidates = scores if ids is None else scores[ids]
        quotients = _divide(candidates, highest, temperature)
        if ids is None:
            np.copyto(warped[row], quotients)
        else:
            warped[row].fill(-np.inf)
            warped[row, ids] = quotients


def _divide(scores: Float32, highest: np.float32, temperature: np.float32) -> Float32:
    with np.errstate(over="ignore", under="ignore"):
        shift = np.float32(0.0) if np.isfinite(highest / temperature) else highest
        quotients: Float32 = np.maximum((scores - shift) / temperature, _LOWEST)
    quotients[np.isneginf(scores)] = -np.inf
    return quotients
