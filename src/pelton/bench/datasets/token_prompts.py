"""Prompts of random tokens: the datasets random and prefix_repetition."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.requests import BenchRequest
from pelton.tokenizer import Tokenizer

_MOST_DRAWS = 1000
"""To find a prompt that was not there yet. So many fail only where nearly all that there are have been taken."""

TokenIds = tuple[int, ...]


def random_requests(
    config: DatasetConfig, tokenizer: Tokenizer, rng: np.random.Generator, others: Sequence[BenchRequest] = ()
) -> list[BenchRequest]:
    """No two prompts are alike, nor like those of `others`, requests of the same kind.

    Raises ValueError if the vocabulary has not so many of that length.
    """
    vocabulary = _vocabulary(tokenizer)
    prefix = _draw(rng, vocabulary, config.random_prefix_len)
    input_lens = _lengths(rng, config, config.random_input_len)
    output_lens = _lengths(rng, config, config.random_output_len)
    taken = [_ids(request)[config.random_prefix_len :] for request in others]
    return [
        _request(prefix + own, output_len)
        for own, output_len in zip(_distinct(rng, vocabulary, input_lens, taken), output_lens, strict=True)
    ]


def prefix_repetition_requests(
    config: DatasetConfig, tokenizer: Tokenizer, rng: np.random.Generator, others: Sequence[BenchRequest] = ()
) -> list[BenchRequest]:
    """No two beginnings, and no two ends, are alike, nor like those of `others`, requests of the same kind.

    Each beginning has as many prompts, or one more, in random order. Raises ValueError if the vocabulary has not so
    many.
    """
    vocabulary = _vocabulary(tokenizer)
    num_prefixes, num_prompts = config.prefix_repetition_num_prefixes, config.num_prompts
    prefix_len, suffix_len = config.prefix_repetition_prefix_len, config.prefix_repetition_suffix_len
    beginnings, ends = ([_ids(one)[part] for one in others] for part in (slice(prefix_len), slice(prefix_len, None)))
    prefixes = _distinct(rng, vocabulary, [prefix_len] * num_prefixes, beginnings)
    suffixes = _distinct(rng, vocabulary, [suffix_len] * num_prompts, ends)
    order = rng.permutation(num_prompts) % num_prefixes
    return [
        _request(prefixes[index] + suffix, config.prefix_repetition_output_len)
        for index, suffix in zip(order.tolist(), suffixes, strict=True)
    ]


def _request(prompt: TokenIds, output_len: int) -> BenchRequest:
    return BenchRequest(prompt, output_len, prompt_len=len(prompt))


def _ids(request: BenchRequest) -> TokenIds:
    assert isinstance(request.prompt, tuple)
    return request.prompt


def _vocabulary(tokenizer: Tokenizer) -> np.ndarray:
    return np.array(tokenizer.text_token_ids)


def _lengths(rng: np.random.Generator, config: DatasetConfig, middle: int) -> list[int]:
    """Integers in [middle * (1 - ratio), middle * (1 + ratio)] that are at least 1, all equally likely."""
    spread = math.floor(middle * config.random_range_ratio + 1e-9)
    low, high = max(1, middle - spread), middle + spread
    return rng.integers(low, high, size=config.num_prompts, endpoint=True).tolist()  # type: ignore[no-any-return]


def _distinct(
    rng: np.random.Generator, vocabulary: np.ndarray, lengths: Iterable[int], taken: Iterable[TokenIds]
) -> list[TokenIds]:
    """One of each length, none of them in `taken`."""
    known = set(taken)
    found = []
    for length in lengths:
        found.append(_new(rng, vocabulary, length, known))
        known.add(found[-1])
    return found


def _new(rng: np.random.Generator, vocabulary: np.ndarray, length: int, known: set[TokenIds]) -> TokenIds:
    for _ in range(_MOST_DRAWS):
        if (drawn := _draw(rng, vocabulary, length)) not in known:
            return drawn
    raise ValueError(
        f"there are too few different prompts of {length} tokens: the vocabulary has {len(vocabulary)} tokens; make "
        "prompts longer, or num_prompts smaller"
    )


def _draw(rng: np.random.Generator, vocabulary: np.ndarray, length: int) -> TokenIds:
    return tuple(rng.choice(vocabulary, length).tolist())
