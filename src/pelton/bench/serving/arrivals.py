"""When the requests of a load are due: drawn before it begins, so that no slow client or server stretches it."""

import math
from collections.abc import Sequence

import numpy as np

_STREAM = 0x617272
"""Keeps these random numbers apart from the dataset's, whose seed is the same."""


def rates(num_requests: int, *, strategy: str, start: float, end: float) -> np.ndarray:
    """The request rate at each request, in requests/s, rising (or falling) from `start` to `end` over the requests.

    linear: by equal amounts; exponential: by equal factors. Shape (num_requests,).
    """
    progress = np.linspace(0.0, 1.0, num_requests) if num_requests > 1 else np.ones(1)
    if strategy == "linear":
        return start + (end - start) * progress
    return np.asarray(start * (end / start) ** progress)


def arrival_times(rates: np.ndarray, *, burstiness: float, seed: int) -> list[float]:
    """Seconds from the beginning at which each request is due, ascending; the first is due at once.

    `rates`: requests/s at each request. The gaps are independent, and Gamma distributed with shape `burstiness` and
    mean 1 / rate: 1 is a Poisson process, less has more bursts, much more comes close to equal gaps.
    """
    rng = np.random.default_rng([seed, _STREAM])
    gaps = rng.gamma(burstiness, 1.0 / (burstiness * rates))
    gaps[0] = 0.0
    times: list[float] = np.cumsum(gaps).tolist()
    return times


def steady_arrival_times(rate: float, num_requests: int, *, burstiness: float, seed: int) -> list[float]:
    """The same at one rate; infinite: all are due at once.

    The gaps are scaled so that their mean is 1 / rate exactly, as vLLM does: by chance alone, the load of a short run
    would be 10 % or more beside the one asked for. Raises ValueError for a burstiness so low that no gap is above 0.
    """
    if math.isinf(rate) or num_requests == 1:
        return [0.0] * num_requests
    times = np.array(arrival_times(np.ones(num_requests), burstiness=burstiness, seed=seed))
    if not 0.0 < times[-1] < math.inf:
        raise ValueError(f"burstiness is {burstiness:g}, so that all requests would be due at once; raise it")
    scaled: list[float] = (times * ((num_requests - 1) / rate / times[-1])).tolist()
    return scaled


def offered_rate(due_times: Sequence[float]) -> float | None:
    """Requests per second from the first to the last that was due; None where all are due at once."""
    return (len(due_times) - 1) / due_times[-1] if due_times[-1] else None
