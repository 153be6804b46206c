"""Whether prompts came from a server's prefix cache that are new to it by the dataset."""

from collections import Counter
from collections.abc import Sequence

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.requests import BenchRequest
from pelton.bench.serving.request_result import RequestResult


def num_reused(dataset: DatasetConfig, requests: Sequence[BenchRequest], results: Sequence[RequestResult]) -> int:
    """Requests with most of their own part of the prompt in the cache, that is, without what prompts share on purpose.

    Prompts of random tokens share the beginnings that the dataset gives them, and what a chat template adds. How much
    of those of a file is shared is not known: no more than the shortest has is taken to be.
    """
    times = Counter(map(id, requests))  # a dataset that is repeated has the same objects again
    answered = [
        (request, result)
        for request, result in zip(requests, results, strict=True)
        if result.success and result.prompt_len and times[id(request)] == 1
    ]
    shortest = min((result.prompt_len for _, result in answered), default=0)
    prefix_len = {
        "random": dataset.random_prefix_len,
        "prefix_repetition": dataset.prefix_repetition_prefix_len,
    }.get(dataset.dataset_name)
    num = 0
    for request, result in answered:
        shared = shortest
        if prefix_len is not None and request.prompt_len is not None:
            shared = prefix_len + max(0, result.prompt_len - request.prompt_len)
        num += result.cached_len > (shared + result.prompt_len) / 2
    return num
