"""Bounds on what a benchmark of a server measures, such as `p99_e2el_ms<500`."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import ge, gt, le, lt
from typing import Any

from pelton.error_text import shown

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between events with tokens",
    "e2el": "time to last token",
}
"""What is measured of each request, and what it is called in words."""
OTHER_METRICS = (
    "completed",
    "failed",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
)

_COMPARE: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_BOUND = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*")
_LATENCY = re.compile(rf"(mean|median|std|p([0-9]+(?:\.[0-9]+)?))_({'|'.join(LATENCIES)})_ms")
_FORM = "it must have the form METRIC<NUMBER or METRIC>NUMBER, such as p99_e2el_ms<500"


@dataclass(frozen=True)
class LatencyMetric:
    """A figure over all requests' latencies of one kind."""

    statistic: str
    """mean, std, or percentile."""
    percentile: float
    """From 0 to 100; 50 for the median, and of no meaning for other statistics."""
    latency: str
    """One of `LATENCIES`."""


@dataclass(frozen=True)
class Bound:
    """A metric, by its key in the result, and the limit that it is held to."""

    metric: str
    comparison: str
    """<, <=, > or >=."""
    limit: float
    """Latencies are milliseconds, throughputs are per second."""

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{_written(self.limit)}"

    @property
    def latency(self) -> LatencyMetric | None:
        """None for a metric that is no latency."""
        return parse_latency(self.metric)

    def holds(self, result: Mapping[str, Any]) -> bool:
        """False as well where nothing was measured, since no request was completed.

        Raises ValueError if the result has no such key.
        """
        if self.metric not in result:
            raise ValueError(
                f"the result has no {self.metric}; have it measured with --percentile-metrics, --metric-percentiles "
                "or --goodput"
            )
        value = result[self.metric]
        return value is not None and self.allows(value)

    def allows(self, value: float) -> bool:
        return _COMPARE[self.comparison](value, self.limit)

    def negated(self) -> "Bound":
        """What holds when this one does not."""
        return replace(self, comparison=_NEGATED[self.comparison])


def parse_bound(text: str) -> Bound:
    """Raises ValueError, which says what a bound looks like, for other texts."""
    found = _BOUND.fullmatch(text)
    if found is None:
        raise ValueError(f"{shown(text)} is no bound; {_FORM}")
    metric, comparison, number = found.groups()
    if metric not in OTHER_METRICS and parse_latency(metric) is None:
        latencies = ", ".join(f"{name}_ms" for name in LATENCIES)
        raise ValueError(
            f"{shown(text)} has an unknown metric; it must be mean, median, std or a percentile such as p99 of "
            f"{latencies} (p99_e2el_ms), or one of {', '.join(OTHER_METRICS)}"
        )
    try:
        limit = float(number)
    except ValueError:
        raise ValueError(f"{shown(text)} has no number; {_FORM}") from None
    if not math.isfinite(limit):
        raise ValueError(f"the limit in {shown(text)} must be finite")
    return Bound(metric, comparison, limit)


def parse_latency(metric: str) -> LatencyMetric | None:
    """Of a key such as p99_e2el_ms; None if it is no such key."""
    found = _LATENCY.fullmatch(metric)
    if found is None:
        return None
    statistic, number, latency = found.groups()
    if statistic == "median":
        return LatencyMetric("percentile", 50.0, latency)
    if number is None:
        return LatencyMetric(statistic, 0.0, latency)
    percentile = float(number)
    return LatencyMetric("percentile", percentile, latency) if percentile <= 100.0 else None


def percentile_key(percentile: float) -> str:
    """p99 for 99, p99.9 for 99.9."""
    return f"p{_written(percentile)}"


def _written(number: float) -> str:
    """In full, and whole numbers without a fraction."""
    return repr(float(number)).removesuffix(".0")
