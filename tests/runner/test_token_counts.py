"""Occurrences of tokens, against collections.Counter."""

import random
from collections import Counter

import numpy as np

from pelton.runner.token_counts import TokenCounts


def at(counts: TokenCounts, output: list[int]) -> dict[int, int]:
    ids, numbers = counts.at(np.array(output, np.int32))
    assert ids.dtype == numbers.dtype == np.int32
    assert len(set(ids.tolist())) == len(ids)
    return dict(zip(ids.tolist(), numbers.tolist(), strict=True))


def expected(prompt: list[int], output: list[int]) -> dict[int, int]:
    return {token_id: Counter(output)[token_id] for token_id in {*prompt, *output}}


def test_counts_are_those_of_the_output_and_ids_those_of_both():
    rng = random.Random(3)
    prompt = [rng.randrange(50) for _ in range(40)]
    output = [rng.randrange(400) for _ in range(30)]
    counts = TokenCounts(prompt)
    for length in (10, *range(11, 31)):
        assert at(counts, output[:length]) == expected(prompt, output[:length])


def test_it_goes_back_and_on_with_other_tokens():
    """Guesses that turn out wrong: up to five tokens go, and one, then more, come instead."""
    rng = random.Random(4)
    prompt, output = [3, 1, 3], []
    counts = TokenCounts(prompt)
    for _ in range(300):
        guesses = [rng.randrange(12) for _ in range(rng.randrange(6))]
        for length in range(len(guesses) + 1):
            seen = output + guesses[:length]
            assert at(counts, seen) == expected(prompt, seen)
        output += [*guesses[: rng.randint(0, len(guesses))], rng.randrange(12)]


def test_it_grows():
    counts = TokenCounts([])
    output = [token_id for i in range(1000) for token_id in (i, i // 2)]
    ids, numbers = counts.at(np.array(output, np.int32))
    assert ids.tolist() == list(range(1000))
    assert numbers.tolist() == [3] * 500 + [1] * 500
