"""Counts and times what the engine does, for `LLMEngine.get_metrics`.

Each of a request's `n` choices counts as a request of its own, as it is one to the engine core.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.messages import EngineStats
from pelton.core.metrics import Counter, Gauge, Histogram, Metric

INTERVAL_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds between tokens: from small models on fast machines to long prompts that run beside."""

DURATION_BOUNDS = (*INTERVAL_BOUNDS, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Seconds of a request or a part of it: up to a long text in a long queue."""

TOKEN_BOUNDS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Tokens of a request or a step: 1, 2, 5 and so on up to 500,000."""

FINISH_REASONS = ("stop", "length", "abort", "error")


class _Observations:
    """Values, sorted into buckets."""

    __slots__ = ("_bounds", "_state")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._state = [0] * (len(bounds) + 1), 0.0
        """Counts by bucket, and the sum; replaced as a whole, since another thread may be reading."""

    def add(self, value: float) -> None:
        counts, total = self._state[0].copy(), self._state[1] + value
        counts[bisect_left(self._bounds, value)] += 1
        self._state = counts, total

    def snapshot(self, name: str, labels: dict[str, str]) -> Histogram:
        counts, total = self._state
        buckets, count = {}, 0
        for bound, num_values in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            count += num_values
            buckets[bound] = count
        return Histogram(name, dict(labels), count, total, buckets)


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
    """The front end's counters and histograms.

    A prompt counts when its first token has been generated, or when none was asked for. The histograms named
    after requests hold those that ended by themselves: neither aborted ones nor failed ones.
    """

    def __init__(self) -> None:
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generation_tokens = 0
        self._num_finished = dict.fromkeys(FINISH_REASONS, 0)
        self._time_to_first_token = _Observations(DURATION_BOUNDS)
        self._inter_token_latency = _Observations(INTERVAL_BOUNDS)
        self._time_per_output_token = _Observations(INTERVAL_BOUNDS)
        self._e2e_latency = _Observations(DURATION_BOUNDS)
        self._queue_time = _Observations(DURATION_BOUNDS)
        self._prefill_time = _Observations(DURATION_BOUNDS)
        self._decode_time = _Observations(DURATION_BOUNDS)
        self._prompt_length = _Observations(TOKEN_BOUNDS)
        self._generation_length = _Observations(TOKEN_BOUNDS)
        self._step_length = _Observations(TOKEN_BOUNDS)

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

    def snapshot(self, model_name: str, stats: EngineStats | None) -> list[Metric]:
        """All figures. `stats` is the core's state, None before its first step."""
        labels = {"model_name": model_name, "engine": "0"}
        gauges = {
            "num_requests_running": stats.num_running if stats else 0,
            "num_requests_waiting": stats.num_waiting if stats else 0,
            "kv_cache_usage_perc": stats.kv_cache_usage if stats else 0.0,
        }
        counters = {
            "prefix_cache_queries": stats.num_prefix_queries if stats else 0,
            "prefix_cache_hits": stats.num_prefix_hits if stats else 0,
            "num_preemptions": stats.num_preemptions if stats else 0,
            "prompt_tokens": self._num_prompt_tokens,
            "prompt_tokens_cached": self._num_cached_tokens,
            "generation_tokens": self._num_generation_tokens,
        }
        histograms = {
            "time_to_first_token_seconds": self._time_to_first_token,
            "inter_token_latency_seconds": self._inter_token_latency,
            "request_time_per_output_token_seconds": self._time_per_output_token,
            "e2e_request_latency_seconds": self._e2e_latency,
            "request_queue_time_seconds": self._queue_time,
            "request_prefill_time_seconds": self._prefill_time,
            "request_decode_time_seconds": self._decode_time,
            "request_prompt_tokens": self._prompt_length,
            "request_generation_tokens": self._generation_length,
            "iteration_tokens_total": self._step_length,
        }
        metrics: list[Metric] = []
        metrics += [Gauge(f"vllm:{name}", dict(labels), float(value)) for name, value in gauges.items()]
        metrics += [Counter(f"vllm:{name}", dict(labels), value) for name, value in counters.items()]
        metrics += [
            Counter("vllm:request_success", labels | {"finished_reason": reason}, count)
            for reason, count in self._num_finished.items()
        ]
        metrics += [values.snapshot(f"vllm:{name}", labels) for name, values in histograms.items()]
        return metrics
