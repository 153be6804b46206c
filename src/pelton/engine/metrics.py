"""Counts and times what the engine does, for `LLMEngine.get_metrics`.

Each of a request's `n` choices counts as a request of its own, as it is one to the engine core.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pelton.core.control_messages import MetricsState
from pelton.core.messages import EngineStats
from pelton.core.metrics import Counter, Gauge, Histogram, Metric

INTERVAL_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between tokens: from small models on fast machines to long prompts that run beside."""

DURATION_BOUNDS = (*INTERVAL_BOUNDS, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Seconds of a request or a part of it: up to a long text in a long queue."""

TOKEN_BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Tokens of a request or a step: 1, 2, 5 and so on up to 500,000."""

FINISH_REASONS = ("stop", "length", "abort", "error")

_BOUNDS: dict[str, Sequence[float]] = {
    "time_to_first_token_seconds": DURATION_BOUNDS,
    "inter_token_latency_seconds": INTERVAL_BOUNDS,
    "request_time_per_output_token_seconds": INTERVAL_BOUNDS,
    "e2e_request_latency_seconds": DURATION_BOUNDS,
    "request_queue_time_seconds": DURATION_BOUNDS,
    "request_prefill_time_seconds": DURATION_BOUNDS,
    "request_decode_time_seconds": DURATION_BOUNDS,
    "request_prompt_tokens": TOKEN_BOUNDS,
    "request_generation_tokens": TOKEN_BOUNDS,
    "iteration_tokens_total": TOKEN_BOUNDS,
}
"""Histogram -> upper bounds of its buckets, without the last, which is infinite."""


class _Observations:
    """Values, sorted into buckets."""

    __slots__ = ("_bounds", "state")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.state: tuple[list[int], float] = [0] * (len(bounds) + 1), 0.0
        """Counts by bucket, and the sum; replaced as a whole, since another thread may be reading."""

    def add(self, value: float) -> None:
        counts, total = self.state[0].copy(), self.state[1] + value
        counts[bisect_left(self._bounds, value)] += 1
        self.state = counts, total


@dataclass(slots=True)
class SequenceStats:
    """Counts of one choice and its milestones, in seconds of the monotonic clock; None for those not reached."""

    arrival_time: float
    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None


class EngineMetrics:
    """A front end's counters and histograms of one core.

    A prompt counts when its first token has been generated, or when none was asked for. The histograms named
    after requests hold those that ended by themselves: neither aborted ones nor failed ones.
    """

    def __init__(self) -> None:
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generation_tokens = 0
        self._num_finished = dict.fromkeys(FINISH_REASONS, 0)
        self._histograms = {name: _Observations(bounds) for name, bounds in _BOUNDS.items()}
        self._time_to_first_token = self._histograms["time_to_first_token_seconds"]
        self._inter_token_latency = self._histograms["inter_token_latency_seconds"]
        self._time_per_output_token = self._histograms["request_time_per_output_token_seconds"]
        self._e2e_latency = self._histograms["e2e_request_latency_seconds"]
        self._queue_time = self._histograms["request_queue_time_seconds"]
        self._prefill_time = self._histograms["request_prefill_time_seconds"]
        self._decode_time = self._histograms["request_decode_time_seconds"]
        self._prompt_length = self._histograms["request_prompt_tokens"]
        self._generation_length = self._histograms["request_generation_tokens"]
        self._step_length = self._histograms["iteration_tokens_total"]

    def record_step(self, num_scheduled_tokens: int) -> None:
        """A step was launched with so many tokens; 0 if there was nothing to launch."""
        if num_scheduled_tokens:
            self._step_length.add(num_scheduled_tokens)

    def record_tokens(self, stats: SequenceStats, num_tokens: int, now: float) -> None:
        """A step generated tokens, at least one. Updates the choice's counts and times as well."""
        last = stats.last_token_time
        if last is None:
            stats.first_token_time = now
            self._time_to_first_token.add(now - stats.arrival_time)
            self._record_prompt(stats)
        else:
            self._inter_token_latency.add(now - last)
        stats.last_token_time = now
        stats.num_generation_tokens += num_tokens
        self._num_generation_tokens += num_tokens

    def record_finish(self, stats: SequenceStats, finish_reason: str, now: float) -> None:
        """A choice has ended."""
        self._num_finished[finish_reason] += 1
        if finish_reason not in ("stop", "length"):
            return
        self._e2e_latency.add(now - stats.arrival_time)
        self._prompt_length.add(stats.num_prompt_tokens)
        self._generation_length.add(stats.num_generation_tokens)
        if stats.scheduled_time is not None:
            self._queue_time.add(stats.scheduled_time - stats.arrival_time)
        if stats.first_token_time is None or stats.last_token_time is None:
            self._record_prompt(stats)
            return
        if stats.scheduled_time is not None:
            self._prefill_time.add(stats.first_token_time - stats.scheduled_time)
        decode_time = stats.last_token_time - stats.first_token_time
        self._decode_time.add(decode_time)
        if stats.num_generation_tokens > 1:
            self._time_per_output_token.add(decode_time / (stats.num_generation_tokens - 1))

    def _record_prompt(self, stats: SequenceStats) -> None:
        self._num_prompt_tokens += stats.num_prompt_tokens
        self._num_cached_tokens += stats.num_cached_tokens

    def state(self, rank: int, stats: EngineStats | None) -> MetricsState:
        """What there is to tell. `stats` is the core's state, None before its first step."""
        return MetricsState(
            rank=rank,
            counters={
                "prompt_tokens": self._num_prompt_tokens,
                "prompt_tokens_cached": self._num_cached_tokens,
                "generation_tokens": self._num_generation_tokens,
            },
            finished=dict(self._num_finished),
            histograms={name: values.state for name, values in self._histograms.items()},
            stats=stats,
        )

    def snapshot(self, model_name: str, stats: EngineStats | None) -> list[Metric]:
        """All figures of the only core, for users."""
        return metrics_of(model_name, self.state(0, stats))


def merged(states: Iterable[MetricsState]) -> list[MetricsState]:
    """One state per rank, of those that several front ends have: sums, and the newest state of the core."""
    by_rank: dict[int, MetricsState] = {}
    for state in states:
        known = by_rank.get(state.rank)
        by_rank[state.rank] = state if known is None else _sum(known, state)
    return [by_rank[rank] for rank in sorted(by_rank)]


def _sum(one: MetricsState, other: MetricsState) -> MetricsState:
    known_stats = [state.stats for state in (one, other) if state.stats is not None]
    return MetricsState(
        rank=one.rank,
        counters={name: value + other.counters[name] for name, value in one.counters.items()},
        finished={name: value + other.finished[name] for name, value in one.finished.items()},
        histograms={
            name: (
                [a + b for a, b in zip(counts, other.histograms[name][0], strict=True)],
                total + other.histograms[name][1],
            )
            for name, (counts, total) in one.histograms.items()
        },
        stats=max(known_stats, key=lambda stats: stats.timestamp, default=None),
    )


def metrics_of(model_name: str, state: MetricsState) -> list[Metric]:
    """The figures of one core, under Prometheus names."""
    labels = {"model_name": model_name, "engine": str(state.rank)}
    stats = state.stats
    gauges = {
        "num_requests_running": stats.num_running if stats else 0,
        "num_requests_waiting": stats.num_waiting if stats else 0,
        "kv_cache_usage_perc": stats.kv_cache_usage if stats else 0.0,
    }
    counters = {
        "prefix_cache_queries": stats.num_prefix_queries if stats else 0,
        "prefix_cache_hits": stats.num_prefix_hits if stats else 0,
        "num_preemptions": stats.num_preemptions if stats else 0,
        **state.counters,
    }
    metrics: list[Metric] = []
    metrics += [Gauge(f"vllm:{name}", dict(labels), float(value)) for name, value in gauges.items()]
    metrics += [Counter(f"vllm:{name}", dict(labels), value) for name, value in counters.items()]
    metrics += [
        Counter("vllm:request_success", labels | {"finished_reason": reason}, count)
        for reason, count in state.finished.items()
    ]
    metrics += [_histogram(name, labels, *state.histograms[name]) for name in _BOUNDS]
    return metrics


def _histogram(name: str, labels: dict[str, str], counts: Sequence[int], total: float) -> Histogram:
    buckets, count = {}, 0
    for bound, num_values in zip((*map(str, _BOUNDS[name]), "+Inf"), counts, strict=True):
        count += num_values
        buckets[bound] = count
    return Histogram(f"vllm:{name}", dict(labels), count, total, buckets)
