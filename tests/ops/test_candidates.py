"""Shortcuts of top-k and top-p against sorting everything."""

import numpy as np
import pytest

from pelton.ops.reference.candidates import find_candidates
from pelton.ops.reference.kth_highest import kth_highest

RNG = np.random.default_rng(11)


def ties(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 12, 5000).astype(np.float32)


def steep(rng: np.random.Generator) -> np.ndarray:
    """The weights span float32's range: many tokens of tiny mass, which only a top_p next to 1 reaches."""
    return rng.uniform(-110, 0, 5000).astype(np.float32)


SHAPES = {
    "one token": lambda rng: np.zeros(1, np.float32),
    "small": lambda rng: rng.standard_normal(17, dtype=np.float32),
    "equal": lambda rng: np.full(3000, 2.5, np.float32),
    "ties": ties,
    "flat": lambda rng: rng.standard_normal(20_000, dtype=np.float32) * np.float32(0.1),
    "peaked": lambda rng: rng.standard_normal(20_000, dtype=np.float32) * 4,
    "steep": steep,
    "almost one-hot": lambda rng: np.where(np.arange(4000) == 77, 40, rng.standard_normal(4000)).astype(np.float32),
    "ruled out": lambda rng: np.where(rng.random(3000) < 0.99, -np.inf, rng.standard_normal(3000)).astype(np.float32),
}


def warpers(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> np.ndarray:
    return np.array([temperature, top_k, top_p, min_p], np.float32)


def sorted_nucleus(weights: np.ndarray, top_p: float) -> np.ndarray:
    """By a stable sort of all tokens, summed from the heaviest on."""
    order = np.argsort(-weights, kind="stable")
    mass = np.cumsum(weights[order], dtype=np.float64)
    count = np.argmax(mass >= top_p * weights.sum(dtype=np.float64)) + 1
    return np.sort(order[:count])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-5, 1 - 2.0**-24])
def test_nucleus_is_that_of_the_full_sort(shape: str, top_p: float) -> None:
    for temperature in (0.7, 1.0, 2.0):
        scores = SHAPES[shape](RNG)
        _, weights = find_candidates(scores, scores.max(), warpers(temperature))
        ids, kept = find_candidates(scores, scores.max(), warpers(temperature, top_p=top_p))
        expected = sorted_nucleus(weights, float(np.float32(top_p)))
        assert np.array_equal(ids, expected)
        assert np.array_equal(kept, weights[expected])


@pytest.mark.parametrize("shape", SHAPES)
def test_kth_highest_is_that_of_the_full_sort(shape: str) -> None:
    scores = SHAPES[shape](RNG)
    descending = np.sort(scores)[::-1]
    for k in {1, 2, 31, 32, 33, len(scores) // 32, len(scores) // 32 + 1, len(scores) - 1, len(scores)}:
        if 1 <= k <= len(scores):
            assert kth_highest(scores, k) == descending[k - 1], k


def test_without_a_limit_all_tokens_are_candidates() -> None:
    scores = SHAPES["small"](RNG)
    for top_k in (0, len(scores)):
        ids, weights = find_candidates(scores, scores.max(), warpers(top_k=top_k))
        assert ids is None
        assert weights.max() == 1.0


def test_min_p_keeps_what_is_exactly_at_it() -> None:
    """And top-p counts only what min-p left: of weights 1, 1/2, 1/4, 1/8, the first two are 4/5 of the first three's
    mass plus a little, but not of all."""
    scores = np.array([0.0, -1.0, -2.0, -3.0], np.float32)
    temperature = 1.0 / np.log(2.0)
    ids, weights = find_candidates(scores, scores[0], warpers(temperature))
    assert ids is None
    for top_p, min_p, kept in ((1.0, weights[2], 3), (0.84, 0.2, 2), (0.84, 0.0, 3)):
        ids, _ = find_candidates(scores, scores[0], warpers(temperature, top_p=top_p, min_p=min_p))
        assert ids.tolist() == list(range(kept))
