"""How outputs are compared where rounding may change a choice: the most likely token, a candidate, the token drawn."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import AnyArray, Float32, Float64, widened
from pelton.ops.operator import Arguments, Tolerance, check_close
from pelton.ops.reference.best_ids import find_best
from pelton.ops.reference.philox import Purpose, uniform

_SLACK = 1e-5
"""How far sums of weights may be off, as a share of their total: a thousand roundings of float32 come to less."""


def compare_logits(
    arguments: Arguments, expected: Sequence[AnyArray], actual: Sequence[AnyArray], tolerance: Tolerance
) -> None:
    """A best id is one that may be the highest within the tolerance; where logits are wanted, it is theirs exactly."""
    x, weight, softcap, is_wanted = arguments
    check_close("logits", expected[0], actual[0], tolerance, is_wanted != 0)
    with np.errstate(invalid="ignore"):
        exact = widened(x).astype(np.float64) @ weight.widened().astype(np.float64).T
        if weight.bias is not None:
            exact += weight.bias
        if softcap is not None:
            exact = softcap * np.tanh(exact / softcap)
    for row, (right, ours) in enumerate(zip(expected[1].tolist(), actual[1].tolist(), strict=True)):
        if is_wanted[row]:
            own = int(find_best(np.asarray(actual[0][row : row + 1], np.float32))[0])
            if ours != own:
                raise AssertionError(f"best id of row {row}: {ours}, but that of its logits is {own}")
        if ours != right:
            highest = exact[row].max()
            allowed = 2.0 * (tolerance.atol + tolerance.rtol * abs(highest))
            is_token = 0 <= ours < exact.shape[1] and right >= 0
            if not is_token or not exact[row, ours] >= highest - allowed:
                raise AssertionError(f"best id of row {row}: expected {right}, got {ours}")


def compare_sampled(
    arguments: Arguments, expected: Sequence[AnyArray], actual: Sequence[AnyArray], tolerance: Tolerance
) -> None:
    """Where a token is drawn, another one will do if the draw is as near to its part of the distribution as sums of
    weights may be off. The tolerance is not looked at."""
    logits, _, edited, edit_index, warpers, seed, choice, position = arguments
    draws = uniform(seed, choice, position, Purpose.SAMPLE)
    for row, (right, ours) in enumerate(zip(expected[0].tolist(), actual[0].tolist(), strict=True)):
        if ours == right:
            continue
        scores = edited[row] if edit_index[row] >= 0 else logits[row]
        is_drawn = 0 <= ours < len(scores) and right >= 0 and warpers[row, 0] > 0.0
        if not is_drawn or not _may_be_drawn(ours, scores, warpers[row], float(draws[row])):
            raise AssertionError(f"token of row {row}: expected {right}, got {ours}")


def compare_warped(
    arguments: Arguments, expected: Sequence[AnyArray], actual: Sequence[AnyArray], tolerance: Tolerance
) -> None:
    """A token at the edge of the candidates may be ruled out or not."""
    logits, edited, edit_index, warpers, num_logprobs = arguments
    for row in np.flatnonzero(num_logprobs >= 0).tolist():
        right, ours = np.asarray(expected[0][row]), np.asarray(actual[0][row])
        scores = edited[row] if edit_index[row] >= 0 else logits[row]
        has_candidates = warpers[row, 0] > 0.0 and np.isfinite(scores.max())
        if has_candidates:
            sets = [is_kept for is_kept, _ in _candidate_sets(scores, warpers[row])]
            is_kept, exists = ours != -np.inf, scores != -np.inf
            if (
                np.isnan(ours).any()
                or (is_kept & ~np.any(sets, axis=0)).any()
                or (exists & np.all(sets, axis=0) & ~is_kept).any()
            ):
                raise AssertionError(f"candidates of row {row}: got {np.flatnonzero(is_kept).tolist()}")
            both = is_kept & (right > -np.inf)
            right, ours = right[both], ours[both]
        check_close(f"row {row}", right, ours, tolerance)


def _may_be_drawn(token_id: int, scores: Float32, warpers: Float32, draw: float) -> bool:
    for is_kept, weights in _candidate_sets(scores, warpers):
        sums = np.cumsum(np.where(is_kept, weights, 0.0))
        slack, target = _SLACK * sums[-1], draw * sums[-1]
        start = sums[token_id - 1] if token_id else 0.0
        if is_kept[token_id] and weights[token_id] > 0.0 and start - slack <= target <= sums[token_id] + slack:
            return True
    return False


def _candidate_sets(scores: Float32, warpers: Float32) -> list[tuple[NDArray[np.bool_], Float64]]:
    """Candidates [V] and weights [V], in float64 and by sorting: with min_p and top_p as they are, and a little off.

    See `find_candidates`.
    """
    temperature, top_k, top_p, min_p = map(float, warpers)
    logits = scores.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((logits - logits.max()) / temperature)
    order = np.lexsort((np.arange(len(logits)), -logits))
    is_high = np.ones(len(logits), bool)
    if 0 < top_k < len(logits):
        is_high = logits >= logits[order[int(top_k) - 1]]
    sets = []
    for least, share in product(_around(min_p), _around(top_p) if top_p < 1.0 else [1.0]):
        is_kept = is_high & (weights >= min(least, 1.0))
        if share < 1.0:
            sums = np.cumsum(np.where(is_kept, weights, 0.0)[order])
            is_kept[order[1:][sums[:-1] >= share * sums[-1]]] = False
        sets.append((is_kept, weights))
    return sets


def _around(value: float) -> list[float]:
    return [value, value * (1.0 - _SLACK), value * (1.0 + _SLACK)]
