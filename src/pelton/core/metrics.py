"""The engine's figures, as `LLM.get_metrics` gives them: Prometheus' kinds, with vLLM's field names."""

from dataclasses import dataclass


@dataclass(slots=True)
class Metric:
    """One figure. Name and labels together are unique."""

    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(Metric):
    """A number that only grows, since the engine's start."""

    value: int


@dataclass(slots=True)
class Gauge(Metric):
    """A number that goes up and down."""

    value: float


@dataclass(slots=True)
class Histogram(Metric):
    """How observed values are distributed."""

    count: int
    sum: float
    buckets: dict[str, int]
    """Upper bound -> observations up to it, ascending; the last bound is `+Inf`."""
