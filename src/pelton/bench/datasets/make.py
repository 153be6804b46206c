"""Requests of whichever dataset is chosen."""

from dataclasses import replace
from logging import getLogger
from typing import NamedTuple

import numpy as np

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.datasets.sharegpt import sharegpt_requests
from pelton.bench.datasets.text_lines import builtin_requests, custom_requests
from pelton.bench.datasets.token_prompts import prefix_repetition_requests, random_requests
from pelton.bench.requests import BenchRequest
from pelton.tokenizer import Tokenizer

_logger = getLogger(__name__)
_DRAWN = {"random": random_requests, "prefix_repetition": prefix_repetition_requests}


class Requests(NamedTuple):
    """What is measured, and what is sent before."""

    measured: list[BenchRequest]
    warmups: list[BenchRequest]


def make_requests(config: DatasetConfig, tokenizer: Tokenizer | None) -> list[BenchRequest]:
    """As many requests as `num_prompts` says; the same ones for the same configuration and vocabulary.

    Those of a file come in random order, and all of them before one comes again. Logs what was left out, and whether
    requests are repeated. Raises ValueError for a file that cannot be used, which it names with the line; if no
    tokenizer is given though `needs_tokenizer`; and with `no_oversample` if there are too few.
    """
    return make_with_warmups(config, tokenizer, 0).measured


def make_with_warmups(config: DatasetConfig, tokenizer: Tokenizer | None, num_warmups: int) -> Requests:
    """The requests of `make_requests`, and others of the same dataset to warm up with.

    None of these is among the measured ones, unless a file has too few for that, which is logged. Raises as
    `make_requests`.
    """
    rng = np.random.default_rng(config.seed)
    if config.dataset_name in _DRAWN:
        return _drawn(config, _needed(tokenizer, config), rng, num_warmups)
    found = _of_file(config, tokenizer, rng, config.num_prompts + num_warmups)
    measured, others = found[: config.num_prompts], found[config.num_prompts :]
    if len(measured) < config.num_prompts:
        measured = _repeated(measured, config, rng)
    if len(others) < num_warmups:
        _logger.warning(
            "num_warmups is %d, and besides what is measured there are %d usable requests in %s: the warm-up sends "
            "some that are measured too, whose prompts may then come from the prefix cache",
            *(num_warmups, len(others), _source(config)),
        )
        others = (others + measured * num_warmups)[:num_warmups]
    return Requests(measured, others)


def _drawn(config: DatasetConfig, tokenizer: Tokenizer, rng: np.random.Generator, num_warmups: int) -> Requests:
    make = _DRAWN[config.dataset_name]
    measured = make(config, tokenizer, rng)
    if not num_warmups:
        return Requests(measured, [])
    num_prefixes = min(config.prefix_repetition_num_prefixes, num_warmups)
    few = replace(config, num_prompts=num_warmups, prefix_repetition_num_prefixes=num_prefixes)
    return Requests(measured, make(few, tokenizer, rng, measured))


def _of_file(
    config: DatasetConfig, tokenizer: Tokenizer | None, rng: np.random.Generator, most: int
) -> list[BenchRequest]:
    """No more than `most`."""
    if config.dataset_name == "sharegpt":
        return sharegpt_requests(config, _needed(tokenizer, config), rng, most)
    if config.dataset_name == "custom":
        return custom_requests(config, rng, most)
    return builtin_requests(config, rng, most)


def _needed(tokenizer: Tokenizer | None, config: DatasetConfig) -> Tokenizer:
    if tokenizer is None:
        raise ValueError(f"dataset {config.dataset_name} needs the model's tokenizer; give it, or choose builtin")
    return tokenizer


def _repeated(requests: list[BenchRequest], config: DatasetConfig, rng: np.random.Generator) -> list[BenchRequest]:
    """In a new order each time."""
    found = (
        f"num_prompts is {config.num_prompts}, and the number of usable requests in {_source(config)} is "
        f"{len(requests)}"
    )
    if config.no_oversample:
        raise ValueError(f"{found}; lower num_prompts, or leave out no_oversample to repeat them")
    _logger.warning("%s: they are repeated, and repeated prompts may come from the prefix cache", found)
    missing = config.num_prompts - len(requests)
    again = [requests[i] for _ in range(-(-missing // len(requests))) for i in rng.permutation(len(requests))]
    return requests + again[:missing]


def _source(config: DatasetConfig) -> str:
    return "builtin" if config.dataset_path is None else config.dataset_path
