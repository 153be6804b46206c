"""The figures of a load, from the results of its requests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pelton.bench.bounds import percentile_key
from pelton.bench.serving.request_errors import CANCELLED, error_kind
from pelton.bench.serving.request_result import RequestResult


def latency_figures(
    results: Iterable[RequestResult], latencies: Sequence[str], percentiles: Sequence[float]
) -> dict[str, float | None]:
    """mean_, median_, std_ and pNN_ of each latency in milliseconds, over the requests that succeeded.

    Percentiles are interpolated linearly between the values next to them. tpot is of answers of more than one token,
    itl of all gaps of all answers. None where there are no values.
    """
    succeeded = [result for result in results if result.success]
    figures: dict[str, float | None] = {}
    for latency in latencies:
        values = np.array(latency_values(latency, succeeded)) * 1e3
        names = ["mean", "median", "std", *map(percentile_key, percentiles)]
        found = _figures(values, percentiles) if len(values) else [None] * len(names)
        figures |= {f"{name}_{latency}_ms": value for name, value in zip(names, found, strict=True)}
    return figures


def _figures(values: np.ndarray, percentiles: Sequence[float]) -> list[float]:
    return [
        float(np.mean(values)),
        float(np.median(values)),
        float(np.std(values)),
        *np.percentile(values, percentiles).tolist(),
    ]


def latency_values(latency: str, succeeded: Sequence[RequestResult]) -> list[float]:
    """Seconds: one of each request, but for itl of each gap; an answer of one token has no tpot."""
    if latency == "itl":
        return [gap for result in succeeded for gap in result.itls]
    if latency == "tpot":
        return [result.tpot for result in succeeded if result.output_len > 1]
    return [getattr(result, latency) for result in succeeded]


def throughput_figures(results: Sequence[RequestResult], duration: float) -> dict[str, Any]:
    """Counts of requests and tokens, and how many of them per second of `duration`.

    Tokens are those of the requests that succeeded; None for prompts, if the tokens of one are not known. `cancelled`:
    those that the early end of the run has ended, which are not among `failed`.
    """
    succeeded = [result for result in results if result.success]
    num_cancelled = sum(error_kind(result.error) == CANCELLED for result in results)
    num_input = sum(result.prompt_len for result in succeeded) if all(one.prompt_len for one in succeeded) else None
    num_output = sum(result.output_len for result in succeeded)
    return {
        "completed": len(succeeded),
        "failed": len(results) - len(succeeded) - num_cancelled,
        "cancelled": num_cancelled,
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "cached_tokens": sum(result.cached_len for result in succeeded),
        "request_throughput": len(succeeded) / duration,
        "output_throughput": num_output / duration,
        "total_token_throughput": None if num_input is None else (num_input + num_output) / duration,
        "max_output_tokens_per_s": busiest_second(succeeded),
        "tokens_per_event": _ratio(num_output, sum(len(result.itls) + 1 for result in succeeded if result.output_len)),
    }


def _ratio(value: float, by: float) -> float | None:
    return value / by if by else None


def busiest_second(results: Iterable[RequestResult]) -> float:
    """Most output tokens within one second, of the seconds that the run has been cut into from its beginning."""
    times, num_tokens = token_events(results)
    return max(np.bincount(np.array(times, np.int64), num_tokens).tolist(), default=0.0)


def token_events(results: Iterable[RequestResult]) -> tuple[list[float], list[float]]:
    """When events with tokens came, in seconds from the start, and how many tokens each brought.

    An event counts for its share of the answer's tokens. Requests that failed are left out.
    """
    times: list[float] = []
    num_tokens: list[float] = []
    for result in results:
        if result.success and result.output_len:
            num_events = len(result.itls) + 1
            times += np.cumsum([result.start_time + result.ttft, *result.itls]).tolist()
            num_tokens += [result.output_len / num_events] * num_events
    return times, num_tokens


def goodput(results: Iterable[RequestResult], limits: Mapping[str, float], duration: float) -> float:
    """Requests per second that succeeded within all limits, which are milliseconds of ttft, tpot or e2el.

    Answers of one token have a tpot of 0.
    """
    num_good = sum(
        result.success and all(getattr(result, latency) * 1e3 <= limit for latency, limit in limits.items())
        for result in results
    )
    return num_good / duration


def failures(results: Iterable[RequestResult]) -> list[dict[str, Any]]:
    """Kind, count and first message of requests that failed, the most frequent kind first."""
    errors = [result.error for result in results if result.error and error_kind(result.error) != CANCELLED]
    first = {error_kind(error): error for error in reversed(errors)}
    counts = Counter(map(error_kind, errors)).most_common()
    return [{"kind": kind, "count": count, "first": first[kind]} for kind, count in counts]


def client_figures(
    *, cpu_seconds: float, duration: float, num_tokens: int, send_delays: Sequence[float], waits: Sequence[float]
) -> dict[str, Any]:
    """What the load generator itself took: were it much, it would be part of what was measured.

    - `client_cpu_share`: of one processor; `client_ceiling_tokens_per_s`: output tokens per second of its processor
      time, so at most so many would it take from a faster server; None where there were no tokens
    - `median_send_delay_ms` and so on: how late requests were sent, waiting for their turn left out
    - `median_wait_ms` and so on: how long they waited for their turn, with a limit of requests at once
    """
    return {
        "client_cpu_seconds": cpu_seconds,
        "client_cpu_share": cpu_seconds / duration,
        "client_ceiling_tokens_per_s": _ratio(num_tokens, cpu_seconds) or None,
        **_delays("send_delay", send_delays),
        **_delays("wait", waits),
    }


def _delays(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys((f"median_{name}_ms", f"p99_{name}_ms", f"max_{name}_ms"))
    median, p99, longest = (np.percentile(seconds, [50, 99, 100]) * 1e3).tolist()
    return {f"median_{name}_ms": median, f"p99_{name}_ms": p99, f"max_{name}_ms": longest}
