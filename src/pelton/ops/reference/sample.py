"""The sampler: one token per row of logits."""

import numpy as np

from pelton.ops.arrays import Float32, Int32, UInt64
from pelton.ops.reference.candidates import find_candidates
from pelton.ops.reference.philox import Purpose, uniform

INVALID_LOGITS = -1
"""Instead of a token id: the row has a NaN or +inf."""
NO_CANDIDATE = -2
"""Instead of a token id: every token is ruled out."""


def sample(
    logits: Float32,
    edited: Float32,
    edited_index: Int32,
    warpers: Float32,
    seed: UInt64,
    choice: Int32,
    position: Int32,
    token_ids: Int32,
) -> None:
    """-> token_ids [L], or INVALID_LOGITS, or NO_CANDIDATE.

    warpers [L, 4] are temperature, top_k, top_p and min_p; seed, choice and position [L] key the random numbers. Row l
    has the scores edited[edited_index[l]] (edited [C, V]), or logits[l] (logits [L, V]) if the index is -1.
    Temperature 0 means greedy: the most likely token, on ties the lowest id. Else one of the candidates
    (`find_candidates`) is drawn: the first in order of id at which the sum of the weights exceeds the draw times the
    sum of all. `position` is that of the token to be sampled. Each row is computed on its own.
    """
    temperatures = warpers[:, 0]
    draws = uniform(seed, choice, position, Purpose.SAMPLE) if temperatures.any() else np.zeros(len(seed))
    for row, index in enumerate(edited_index.tolist()):
        scores = logits[row] if index < 0 else edited[index]
        best = int(scores.argmax())  # a NaN, if there is one
        highest = scores[best]
        if not np.isfinite(highest):
            token_ids[row] = NO_CANDIDATE if highest == -np.inf else INVALID_LOGITS
        elif temperatures[row] == 0.0:
            token_ids[row] = best
        else:
            ids, weights = find_candidates(scores, highest, warpers[row])
            drawn = _draw(weights, float(draws[row]))
            token_ids[row] = drawn if ids is None else ids[drawn]


def _draw(weights: Float32, draw: float) -> int:
    """Invert the cumulative distribution. The target is kept strictly below the total, so that the token found has a
    weight whatever the product rounds to."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = min(draw * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
    return int(np.searchsorted(cumulative, target, side="right"))
