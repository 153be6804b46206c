"""Whether the requests so far prove what a run will show at its end, however long the rest of them take.

Only failures can disprove it: a request that has been under way for long is counted with that time, and would be left
out if it failed after all.
"""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from pelton.bench.bounds import Bound, LatencyMetric
from pelton.bench.serving.request_result import RequestResult


def is_proven(bound: Bound, at_least: Sequence[float]) -> bool:
    """Whether a latency's mean or percentile breaks through a limit (> or >=) for certain.

    `at_least`: of each request that the figure will be of, milliseconds that its latency is or will be at least. Mean
    and percentiles (numpy's, with linear interpolation) only grow with any of these, so the least of the figure is that
    of these numbers. With no requests nothing is proven.
    """
    metric = bound.latency
    assert metric is not None, bound
    return bool(at_least) and bound.allows(_figure(metric, at_least))


def _figure(metric: LatencyMetric, values: Sequence[float]) -> float:
    if metric.statistic == "mean":
        return float(np.mean(values))
    return float(np.percentile(values, metric.percentile))


def least_latencies(
    latency: str,
    results: Sequence[RequestResult],
    in_flight: Collection[int],
    now: float,
    *,
    limit: float = 0.0,
    request_timeout: float = math.inf,
    max_seconds: float | None = None,
) -> list[float]:
    """Milliseconds that the latency of each request is or will be at least, as `is_proven` wants them.

    `latency`: ttft, tpot or e2el. `in_flight`: indices of the requests that are under way; others without an error or
    an end have not been sent. `now`: seconds since the run began. Requests that failed are left out, as the result
    leaves them out; those under way are taken to be answered in the end. tpot leaves out answers of one token.

    How long a request has been under way is no proof if it fails, by `request_timeout` or `max_seconds`, before it can
    reach the `limit` in question, of milliseconds.
    """
    last_start = (math.inf if max_seconds is None else max_seconds) - limit / 1e3
    if limit / 1e3 >= request_timeout:
        last_start = -math.inf
    least: list[float] = []
    for index, result in enumerate(results):
        if index in in_flight:
            least.append(_least_in_flight(latency, result, now if result.start_time < last_start else None))
        elif result.success and not (latency == "tpot" and result.output_len == 1):
            least.append(getattr(result, latency))
    return [seconds * 1e3 for seconds in least]


def _least_in_flight(latency: str, result: RequestResult, now: float | None) -> float:
    """`now`: None if its age is no proof."""
    if not result.start_time or latency == "tpot":  # its task has not begun, or nothing is known before the end
        return 0.0
    known = result.ttft if latency == "ttft" else result.e2el
    return known or (0.0 if now is None else now - result.start_time)


def reason_to_stop(
    bounds: Iterable[Bound],
    results: Sequence[RequestResult],
    in_flight: Collection[int],
    *,
    num_failed: int,
    now: float,
    request_timeout: float = math.inf,
    max_seconds: float | None = None,
) -> str | None:
    """The first of the bounds that is proven to be true of the whole run, in words; None if none is."""
    for bound in bounds:
        metric = bound.latency
        if metric is None:
            proven = bound.allows(num_failed)
        else:
            least = least_latencies(
                metric.latency,
                results,
                in_flight,
                now,
                limit=bound.limit,
                request_timeout=request_timeout,
                max_seconds=max_seconds,
            )
            proven = is_proven(bound, least)
        if proven:
            unless = "" if metric is None else ", unless requests under way fail"
            return f"{bound} is sure after {now:.1f} s{unless}"
    return None
