"""The sampler: one token per row of logits."""

import numpy as np

from pelton.ops.arrays import Float32, Int32, UInt64
from pelton.ops.reference.best_ids import find_best
from pelton.ops.reference.candidates import find_candidates
from pelton.ops.reference.philox import Purpose, uniform


def sample(
    logits: Float32,
    best_ids: Int32,
    edited: Float32,
    edit_index: Int32,
    warpers: Float32,
    seed: UInt64,
    choice: Int32,
    position: Int32,
    token_ids: Int32,
) -> None:
    """-> token_ids [L], or INVALID_LOGITS, or NO_CANDIDATE.

    warpers [L, 4] are temperature, top_k, top_p and min_p; seed, choice and position [L] key the random numbers. Row l
    has the scores edited[l] if edit_index[l] is not -1, else logits[l] (both [L, V]), of which best_ids[l] is the
    highest; rows of either that are not used so, and logits of unedited rows of temperature 0, may hold anything.
    Temperature 0 means greedy: the most likely token, on ties the lowest id. Else one of the candidates
    (`find_candidates`) is drawn: the first in order of id at which the sum of the weights exceeds the draw times the
    sum of all. `position` is that of the token to be sampled. Each row is computed on its own.
    """
    temperatures = warpers[:, 0]
    draws = uniform(seed, choice, position, Purpose.SAMPLE) if temperatures.any() else np.zeros(len(seed))
    for row, index in enumerate(edit_index.tolist()):
        scores, best = logits[row], int(best_ids[row])
        if index >= 0:
            scores = edited[row]
            best = int(find_best(scores[None])[0])
        if best >= 0 and temperatures[row] > 0.0:
            ids, weights = find_candidates(scores, scores[best], warpers[row])
            drawn = _draw(weights, float(draws[row]))
            best = drawn if ids is None else int(ids[drawn])
        token_ids[row] = best


def _draw(weights: Float32, draw: float) -> int:
    """Invert the cumulative distribution. The target is kept strictly below the total, so that the token found has a
    weight whatever the product rounds to."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    target = min(draw * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
    return int(np.searchsorted(cumulative, target, side="right"))
