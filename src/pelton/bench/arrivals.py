"""When the requests of a load are due: drawn before it begins, so that no slow client or server stretches it."""

import math

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


def arrival_times(rate: float | np.ndarray, num_requests: int, *, burstiness: float, seed: int) -> list[float]:
    """Seconds from the beginning at which each request is due, ascending; the first is due at once.

    `rate`: requests/s, one for all or one per request; infinite: all are due at once. The gaps are independent, and
    Gamma distributed with shape `burstiness` and mean 1 / rate: 1 is a Poisson process, less has more bursts, much more
    comes close to equal gaps.
    """
    per_request = np.broadcast_to(np.asarray(rate, np.float64), (num_requests,))
    if math.isinf(per_request[0]):
        return [0.0] * num_requests
    rng = np.random.default_rng([seed, _STREAM])
    gaps = rng.gamma(burstiness, 1.0 / (burstiness * per_request))
    gaps[0] = 0.0
    times: list[float] = np.cumsum(gaps).tolist()
    return times
