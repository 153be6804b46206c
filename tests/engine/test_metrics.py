"""What the engine counts and times."""

import pytest

from pelton.core.messages import EngineCoreOutput, EngineStats
from pelton.core.metrics import Counter, Gauge, Histogram
from pelton.engine.metrics import EngineMetrics
from pelton.sampling_params import RequestOutputKind
from tests.support.played import Played

METRIC_NAMES = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:num_preemptions",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_cached",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:iteration_tokens_total",
]
"""Dashboards read these: a change here is a change of the public interface."""

STATS = EngineStats(
    num_running=3,
    num_waiting=2,
    num_scheduled_tokens=9,
    kv_cache_usage=0.25,
    num_preemptions=4,
    num_prefix_queries=100,
    num_prefix_hits=60,
    num_integrity_failures=0,
)


@pytest.fixture
def clock(monkeypatch):
    """A list of one: the time."""
    now = [0.0]
    monkeypatch.setattr("pelton.engine.output_processor.monotonic", lambda: now[0])
    return now


def snapshot(metrics, stats=None):
    """Figures by name, those by finish reason as a dict."""
    figures = {}
    for metric in metrics.snapshot("a-model", stats):
        if "finished_reason" in metric.labels:
            figures.setdefault(metric.name, {})[metric.labels["finished_reason"]] = metric.value
        else:
            assert metric.name not in figures
            figures[metric.name] = metric if isinstance(metric, Histogram) else metric.value
    return figures


def test_names_and_labels_are_frozen():
    metrics = EngineMetrics().snapshot("a-model", STATS)
    assert list(dict.fromkeys(metric.name for metric in metrics)) == METRIC_NAMES
    for metric in metrics:
        assert metric.labels.items() >= {"model_name": "a-model", "engine": "0"}.items()
        assert metric.labels.keys() <= {"model_name", "engine", "finished_reason"}
    assert len({id(metric.labels) for metric in metrics}) == len(metrics), "who changes labels changes one metric's"


def test_figures_of_the_core():
    figures = snapshot(EngineMetrics(), STATS)
    assert figures["vllm:num_requests_running"] == 3
    assert figures["vllm:num_requests_waiting"] == 2
    assert figures["vllm:kv_cache_usage_perc"] == 0.25
    assert figures["vllm:num_preemptions"] == 4
    assert (figures["vllm:prefix_cache_queries"], figures["vllm:prefix_cache_hits"]) == (100, 60)


def test_before_the_first_step_all_is_zero():
    for metric in EngineMetrics().snapshot("", None):
        assert isinstance(metric, Counter | Gauge | Histogram)
        if isinstance(metric, Histogram):
            assert (metric.count, metric.sum, set(metric.buckets.values())) == (0, 0.0, {0})
        else:
            assert metric.value == 0
            assert type(metric.value) is (int if isinstance(metric, Counter) else float)


def test_one_request_timed(clock):
    """Arrives at 0, is admitted at 1, has tokens at 3, 3.5 and 5 (two)."""
    played = Played(output_kind=RequestOutputKind.FINAL_ONLY)
    for clock[0], token_ids in ((3.0, [30]), (3.5, [30]), (5.0, [30, 31])):
        played.step(
            *token_ids,
            scheduled_time=1.0,
            num_cached_tokens=1,
            finish_reason="length" if clock[0] == 5.0 else None,
        )
    figures = snapshot(played.processor.metrics[0])
    sums = {
        "time_to_first_token_seconds": 3.0,
        "e2e_request_latency_seconds": 5.0,
        "request_queue_time_seconds": 1.0,
        "request_prefill_time_seconds": 2.0,
        "request_decode_time_seconds": 2.0,
        "request_time_per_output_token_seconds": 2.0 / 3.0,
        "request_prompt_tokens": 2.0,
        "request_generation_tokens": 4.0,
    }
    for name, value in sums.items():
        assert (figures[f"vllm:{name}"].count, figures[f"vllm:{name}"].sum) == (1, pytest.approx(value)), name
    between = figures["vllm:inter_token_latency_seconds"]
    assert (between.count, between.sum) == (2, 2.0)
    assert figures["vllm:prompt_tokens"] == 2
    assert figures["vllm:prompt_tokens_cached"] == 1
    assert figures["vllm:generation_tokens"] == 4
    assert figures["vllm:request_success"] == {"stop": 0, "length": 1, "abort": 0, "error": 0}


def test_buckets_are_cumulative(clock):
    played = Played()
    for clock[0] in (0.25, 0.26, 0.46, 0.96, 20.0):
        played.step(30)
    buckets = snapshot(played.processor.metrics[0])["vllm:inter_token_latency_seconds"].buckets
    assert list(buckets)[:3] == ["0.001", "0.002", "0.005"]
    assert list(buckets)[-1] == "+Inf"
    # 0.01, 0.2, 0.5 and 19.04; a value on a bound is within it (as closely as floats are).
    assert [buckets[bound] for bound in ("0.005", "0.02", "0.1", "0.5", "10.0", "+Inf")] == [0, 1, 1, 3, 3, 4]
    assert list(buckets.values()) == sorted(buckets.values())


def test_a_value_on_a_bound_is_within_it(clock):
    played = Played()
    played.step(30)
    played.step(30, finish_reason="length")
    buckets = snapshot(played.processor.metrics[0])["vllm:request_prompt_tokens"].buckets
    assert (buckets["1.0"], buckets["2.0"]) == (0, 1)


def test_finish_reasons(clock):
    """A stop string counts as stop, though the core learns of it as an abort."""
    played = Played(stop="s.")
    played.play([7042, 30])
    for name, reason in (("a", "stop"), ("b", "error"), ("c", "length")):
        played.add(name)
        played.step(30, request_id=name, finish_reason=reason)
    played.add("d")
    played.add("e", n=2)
    played.processor.abort_requests(["d", "d", "e"])
    played.add("f")
    played.processor.fail_all("lost")
    figures = snapshot(played.processor.metrics[0])
    assert figures["vllm:request_success"] == {"stop": 2, "length": 1, "abort": 3, "error": 2}
    for name in ("e2e_request_latency_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert figures[f"vllm:{name}"].count == 3, "neither aborted nor failed requests"
    assert figures["vllm:request_queue_time_seconds"].count == 0, "nobody said when these were admitted"


def test_choices_count_as_requests(clock):
    played = Played(n=2)
    for reason in (None, "length"):
        clock[0] += 1.0
        played.step_all(*(EngineCoreOutput(f"r/{choice}", [30], finish_reason=reason) for choice in range(2)))
    figures = snapshot(played.processor.metrics[0])
    assert figures["vllm:prompt_tokens"] == 4
    assert figures["vllm:generation_tokens"] == 4
    assert figures["vllm:request_success"]["length"] == 2
    assert figures["vllm:time_to_first_token_seconds"].count == 2


def test_a_request_for_no_token_counts_its_prompt(clock):
    played = Played(max_tokens=0)
    clock[0] = 2.0
    played.step(finish_reason="length", scheduled_time=0.5)
    figures = snapshot(played.processor.metrics[0])
    assert (figures["vllm:prompt_tokens"], figures["vllm:generation_tokens"]) == (2, 0)
    assert figures["vllm:e2e_request_latency_seconds"].sum == 2.0
    assert figures["vllm:request_queue_time_seconds"].sum == 0.5
    for name in ("time_to_first_token_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"):
        assert figures[f"vllm:{name}"].count == 0


def test_one_token_has_no_time_per_token(clock):
    played = Played()
    played.step(30, finish_reason="length")
    figures = snapshot(played.processor.metrics[0])
    assert figures["vllm:request_time_per_output_token_seconds"].count == 0
    assert figures["vllm:request_decode_time_seconds"].count == 1


def test_tokens_of_steps():
    metrics = EngineMetrics()
    for num_tokens in (3, 0, 2048, 1):
        metrics.record_step(num_tokens)
    steps = snapshot(metrics)["vllm:iteration_tokens_total"]
    assert (steps.count, steps.sum) == (3, 2052)
    assert (steps.buckets["1.0"], steps.buckets["5.0"], steps.buckets["5000.0"]) == (1, 2, 3)


def test_figures_that_are_read_while_they_change():
    """Another thread may read at any time; here it does so in the middle of an addition."""
    metrics, seen = EngineMetrics(), []

    class Watched(float):
        def __radd__(self, other):
            seen.append(snapshot(metrics)["vllm:iteration_tokens_total"])
            return other + float(self)

    for _ in range(3):
        metrics.record_step(Watched(7.0))
    assert [(figure.count, figure.sum) for figure in seen] == [(0, 0.0), (1, 7.0), (2, 14.0)]
    assert [figure.buckets["+Inf"] for figure in seen] == [0, 1, 2]
