"""Occurrences of tokens, against collections.Counter."""

import random
from collections import Counter

import numpy as np

from pelton.runner.token_counts import TokenCounts


def test_counts_are_those_of_the_output_and_ids_those_of_both():
    rng = random.Random(3)
    prompt = [rng.randrange(50) for _ in range(40)]
    output = [rng.randrange(400) for _ in range(30)]
    counts = TokenCounts(prompt, output[:10])
    for token_id in output[10:]:
        counts.add(token_id)
    assert len(counts) == len(set(prompt) | set(output))
    expected = Counter(output)
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {token_id: expected[token_id] for token_id in {*prompt, *output}}
    assert counts.ids.dtype == counts.counts.dtype == np.int32


def test_it_grows():
    counts = TokenCounts([], [])
    for token_id in range(1000):
        counts.add(token_id)
        counts.add(token_id // 2)
    assert counts.ids.tolist() == list(range(1000))
    assert counts.counts.tolist() == [3] * 500 + [1] * 500
