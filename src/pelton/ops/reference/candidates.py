"""The tokens that a row may be sampled from, and their weights."""

import numpy as np

from pelton.ops.arrays import Float32, Int64
from pelton.ops.reference.kth_highest import kth_highest

_LEAST_WEIGHTS = (2.0**-8, 2.0**-16, 2.0**-24, 0.0)
"""Top-p looks at tokens of these weights and above, one after the other until their mass suffices: mostly at some
hundred tokens, with the first."""
_MARGIN = 1.0 + 2.0**-32
"""Sums in another order differ by less. The sum of all weights always suffices, for top_p is 1 - 2**-24 at most."""


def find_candidates(logits: Float32, highest: np.float32, warpers: Float32) -> tuple[Int64 | None, Float32]:
    """Ids of the candidates in ascending order, None for all tokens, and their weights: probabilities, unscaled.

    logits [V], of which `highest` is the finite maximum; warpers [4] are temperature (above 0), top_k (a whole number),
    top_p and min_p. In this order:

    1. Top-k (1 to V - 1, others: off) keeps the k highest logits, and all that are equal to the k-th.
    2. Temperature: the weight of a token is exp((logit - highest) / temperature), so 1 for the best.
    3. Min-p rules out weights below it (Nguyen et al. 2024, arXiv:2407.01082).
    4. Top-p (1: off) keeps the smallest set of heaviest tokens that has at least this share of the weight that is left;
       of equals, the lowest ids (Holtzman et al. 2019, arXiv:1904.09751).
    """
    temperature, top_k, top_p, min_p = warpers.tolist()
    ids = None
    if 0 < top_k < len(logits):
        ids = np.flatnonzero(logits >= kth_highest(logits, int(top_k)))
        logits = logits[ids]
    with np.errstate(over="ignore", under="ignore"):
        weights = logits - highest
        weights /= temperature
        np.exp(weights, out=weights)
    if min_p > 0.0:
        ids, weights = _select(ids, weights, np.flatnonzero(weights >= min_p))
    if top_p < 1.0:
        ids, weights = _select(ids, weights, _nucleus(weights, top_p))
    return ids, weights


def _select(ids: Int64 | None, weights: Float32, kept: Int64) -> tuple[Int64, Float32]:
    return (kept if ids is None else ids[kept]), weights[kept]


def _nucleus(weights: Float32, top_p: float) -> Int64:
    """Indices of the nucleus in ascending order. Only tokens heavy enough to be in it are sorted."""
    target = top_p * weights.sum(dtype=np.float64)
    for least in _LEAST_WEIGHTS:
        near = np.flatnonzero(weights >= least)
        if weights[near].sum(dtype=np.float64) >= _MARGIN * target:
            break
    heaviest = np.sort(weights[near])[::-1]
    count = int(np.searchsorted(np.cumsum(heaviest, dtype=np.float64), target)) + 1
    last = heaviest[count - 1]
    kept = weights[near] > last
    equal = np.flatnonzero(weights[near] == last)
    kept[equal[: count - np.count_nonzero(kept)]] = True
    nucleus: Int64 = near[kept]
    return nucleus
