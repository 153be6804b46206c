"""Requests of whichever dataset is chosen."""

from logging import getLogger

import numpy as np

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.datasets.sharegpt import sharegpt_requests
from pelton.bench.datasets.text_lines import builtin_requests, custom_requests
from pelton.bench.datasets.token_prompts import prefix_repetition_requests, random_requests
from pelton.bench.requests import BenchRequest
from pelton.tokenizer import Tokenizer

_logger = getLogger(__name__)
_OF_TOKENS = {
    "random": random_requests,
    "prefix_repetition": prefix_repetition_requests,
    "sharegpt": sharegpt_requests,
}
_OF_TEXT = {"custom": custom_requests, "builtin": builtin_requests}


def make_requests(config: DatasetConfig, tokenizer: Tokenizer | None) -> list[BenchRequest]:
    """As many requests as `num_prompts` says; the same ones for the same configuration and vocabulary.

    Those of a file come in random order, and all of them before one comes again. Logs what was left out, and whether
    requests are repeated. Raises ValueError for a file that cannot be used, which it names with the line; if no
    tokenizer is given though `needs_tokenizer`; and with `no_oversample` if there are too few.
    """
    rng = np.random.default_rng(config.seed)
    if config.dataset_name in _OF_TEXT:
        requests = _OF_TEXT[config.dataset_name](config, rng)
    elif tokenizer is None:
        raise ValueError(f"dataset {config.dataset_name} needs the model's tokenizer; give it, or choose builtin")
    else:
        requests = _OF_TOKENS[config.dataset_name](config, tokenizer, rng)
    return _repeated(requests, config, rng) if len(requests) < config.num_prompts else requests


def _repeated(requests: list[BenchRequest], config: DatasetConfig, rng: np.random.Generator) -> list[BenchRequest]:
    """In a new order each time."""
    source = "builtin" if config.dataset_path is None else config.dataset_path
    found = f"num_prompts is {config.num_prompts}, and the number of usable requests in {source} is {len(requests)}"
    if config.no_oversample:
        raise ValueError(f"{found}; lower num_prompts, or leave out no_oversample to repeat them")
    _logger.warning("%s: they are repeated, and repeated prompts may come from the prefix cache", found)
    missing = config.num_prompts - len(requests)
    again = [requests[i] for _ in range(-(-missing // len(requests))) for i in rng.permutation(len(requests))]
    return requests + again[:missing]
