"""What a search is for: service-level objectives that must hold, and a metric that is to be as good as possible."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.bench.bounds import Bound, parse_bound, parse_latency, percentile_key
from pelton.error_text import shown

THROUGHPUTS = ("request_throughput", "output_throughput", "total_token_throughput")
_TINY = 1e-9
_USUAL_PERCENTILES = (50.0, 90.0, 95.0, 99.0)

Metrics = Mapping[str, Any]
"""Figures of one load, by the keys of the result of `pelton bench serve`."""


@dataclass(frozen=True)
class Goal:
    """Bounds of latencies from above, and the objective: a metric, by its key in the result."""

    slos: tuple[Bound, ...]
    objective: str
    is_maximized: bool

    @property
    def metrics(self) -> list[str]:
        """The objective, and the metrics of the bounds."""
        return list(dict.fromkeys([self.objective, *(slo.metric for slo in self.slos)]))

    @property
    def latency(self) -> str | None:
        """The first SLO's metric, or else the objective if it is a latency."""
        if self.slos:
            return self.slos[0].metric
        return None if parse_latency(self.objective) is None else self.objective

    @property
    def percentiles(self) -> str:
        """Those to measure, separated by commas."""
        latencies = [latency for metric in self.metrics if (latency := parse_latency(metric))]
        needed = [latency.percentile for latency in latencies if latency.statistic == "percentile"]
        return ",".join(percentile_key(one).removeprefix("p") for one in sorted({*_USUAL_PERCENTILES, *needed}))

    def is_met(self, metrics: Metrics) -> bool:
        """Whether all bounds hold. Raises ValueError if a metric is missing."""
        return all(slo.holds(metrics) for slo in self.slos)

    def excess(self, metrics: Metrics) -> float:
        """By which factor the metric that is farthest from its limit is beyond it; at least 1, for bounds that are
        met too. Figures are only of requests that were answered: where a load was stopped early, or requests failed, it
        counts as farther by the factor by which all of them are more than those."""
        farthest = max((_excess(slo, metrics.get(slo.metric)) for slo in self.slos), default=1.0)
        completed, others = metrics.get("completed", 1), metrics.get("cancelled", 0) + metrics.get("failed", 0)
        return farthest * (completed + others) / completed if completed else math.inf

    def gain(self, metrics: Metrics, others: Metrics) -> float:
        """How many times as good as the others' the objective is; finite."""
        ours, theirs = metrics[self.objective], others[self.objective]
        better, worse = (ours, theirs) if self.is_maximized else (theirs, ours)
        return float(better / max(worse, _TINY))


def make_goal(slos: Sequence[str], maximize: str | None, minimize: str | None, *, has_request_rate: bool) -> Goal:
    """By default throughput is maximized, and under a given request rate, which decides on the throughput, the first
    SLO's metric is minimized. Raises ValueError that names the flag."""
    bounds = tuple(_slo(text) for text in slos)
    if maximize is not None and minimize is not None:
        raise ValueError("--maximize and --minimize are both given; leave one of them out, or make it an --slo")
    if maximize is not None:
        if maximize not in THROUGHPUTS:
            raise ValueError(f"--maximize must be one of {', '.join(THROUGHPUTS)}, got {shown(maximize)}")
        return Goal(bounds, maximize, is_maximized=True)
    if minimize is None and not has_request_rate:
        return Goal(bounds, "output_throughput", is_maximized=True)
    if minimize is None:
        if not bounds:
            raise ValueError(
                "--request-rate decides on the throughput, so that there is nothing to seek; say what is to be low, "
                "such as --minimize p50_ttft_ms"
            )
        minimize = bounds[0].metric
    if parse_latency(minimize) is None:
        raise ValueError(f"--minimize must be a latency such as p50_ttft_ms, got {shown(minimize)}")
    return Goal(bounds, minimize, is_maximized=False)


def _slo(text: str) -> Bound:
    try:
        bound = parse_bound(text)
    except ValueError as error:
        raise ValueError(f"--slo: {error}") from None
    if bound.latency is None:
        raise ValueError(
            f"--slo {bound} is on {bound.metric}, which is no latency; bound one, such as 'p99_e2el_ms<500'"
        )
    if bound.comparison not in ("<", "<="):
        raise ValueError(f"--slo {bound} is a bound from below; give one from above, such as '{bound.metric}<500'")
    if bound.limit <= 0:
        raise ValueError(f"--slo {bound} has a limit that is not above 0")
    return bound


def _excess(slo: Bound, value: float | None) -> float:
    if value is None:
        return math.inf
    return max(1.0, value / slo.limit)
