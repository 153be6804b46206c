"""Figures by hand, and by numpy."""

import numpy as np
import pytest

from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.statistics import (
    busiest_second,
    client_figures,
    failures,
    goodput,
    latency_figures,
    throughput_figures,
    token_events,
)

ALL = ("ttft", "tpot", "itl", "e2el")


def result(ttft=0.1, itls=(), output_len=None, *, start=0.0, error="", prompt_len=10, cached_len=0):
    itls = list(itls)
    output_len = len(itls) + 1 if output_len is None else output_len
    return RequestResult(start, start, ttft, itls, ttft + sum(itls), prompt_len, output_len, cached_len, "text", error)


def test_latencies_by_hand():
    results = [
        result(0.1, [0.02, 0.04]),  # tpot 0.03, e2el 0.16
        result(0.3, [0.05], output_len=6),  # several tokens in an event: tpot 0.01, e2el 0.35
        result(0.2),  # one token: no tpot, no gaps
        result(9.0, [9.0], error="HTTP 503: busy"),
    ]
    figures = latency_figures(results, ALL, [50.0, 75.0])
    assert figures["mean_ttft_ms"] == pytest.approx(200.0)
    assert figures["median_ttft_ms"] == pytest.approx(200.0)
    assert figures["std_ttft_ms"] == pytest.approx(np.sqrt(2 * 100.0**2 / 3))
    assert figures["p75_ttft_ms"] == pytest.approx(250.0)
    assert figures["mean_tpot_ms"] == pytest.approx(20.0)
    assert figures["p75_tpot_ms"] == pytest.approx(25.0)
    assert figures["mean_itl_ms"] == pytest.approx(110.0 / 3)
    assert figures["median_itl_ms"] == pytest.approx(40.0)
    assert figures["p75_itl_ms"] == pytest.approx(45.0)
    assert figures["mean_e2el_ms"] == pytest.approx((160.0 + 350.0 + 200.0) / 3)
    assert figures["p50_e2el_ms"] == pytest.approx(200.0)


@pytest.mark.parametrize("number", [1, 2, 7, 100])
def test_percentiles_are_numpys_with_linear_interpolation(number):
    rng = np.random.default_rng(number)
    values = rng.gamma(2.0, 0.1, number)
    percentiles = [0.0, 12.5, 50.0, 90.0, 99.0, 99.9, 100.0]
    figures = latency_figures([result(value) for value in values], ["ttft"], percentiles)
    for percentile in percentiles:
        expected = np.percentile(values, percentile, method="linear") * 1e3
        assert figures[f"p{percentile:g}_ttft_ms"] == pytest.approx(expected, rel=1e-12)


def test_only_what_is_asked_for():
    assert set(latency_figures([result()], ["e2el"], [99.9])) == {
        "mean_e2el_ms",
        "median_e2el_ms",
        "std_e2el_ms",
        "p99.9_e2el_ms",
    }


def test_where_nothing_succeeded_there_is_no_latency():
    figures = latency_figures([result(error="stream cut")], ALL, [99.0])
    assert len(figures) == 16
    assert set(figures.values()) == {None}
    assert latency_figures([result()], ["tpot"], [99.0])["p99_tpot_ms"] is None, "no answer has a second token"


def test_throughput_is_tokens_by_the_watch():
    results = [
        result(0.1, [0.1] * 3, prompt_len=5, cached_len=2),
        result(0.1, [0.1], output_len=6, prompt_len=7, cached_len=4),
        result(0.1, [0.1] * 30, prompt_len=100, error="stream cut"),
        RequestResult(0.0, error="cancelled: the run was stopped"),
        RequestResult(0.0, error="cancelled: the run was stopped"),
    ]
    figures = throughput_figures(results, 4.0)
    assert (figures["completed"], figures["failed"], figures["cancelled"]) == (2, 1, 2)
    assert (figures["total_input_tokens"], figures["total_output_tokens"], figures["cached_tokens"]) == (12, 10, 6)
    assert figures["request_throughput"] == 2 / 4.0
    assert figures["output_throughput"] == 10 / 4.0
    assert figures["total_token_throughput"] == 22 / 4.0
    assert figures["tokens_per_event"] == 10 / 6


def test_no_tokens_no_tokens_per_event():
    figures = throughput_figures([result(error="stream cut")], 4.0)
    assert figures["tokens_per_event"] is None
    assert figures["output_throughput"] == figures["max_output_tokens_per_s"] == 0.0


def test_the_busiest_second_by_hand():
    results = [
        result(0.5, [0.4, 0.2, 1.0]),  # events at 0.5, 0.9, 1.1 and 2.1
        result(0.1, [0.2], output_len=10, start=1.5),  # 5 tokens each at 1.6 and 1.8
    ]
    assert busiest_second(results) == 11.0
    assert busiest_second([]) == 0.0


def test_goodput_by_hand():
    results = [
        result(0.1, [0.01] * 10),  # e2el 0.2, tpot 0.01
        result(0.3, [0.01] * 10),  # ttft too long
        result(0.1, [0.1] * 2),  # tpot too long
        result(0.1, [0.04] * 50),  # e2el 2.1
        result(0.2),  # one token: no tpot that could be too long
        result(0.1, [0.01], error="HTTP 400: no"),
    ]
    limits = {"ttft": 200.0, "tpot": 50.0, "e2el": 2000.0}
    assert goodput(results, limits, 4.0) == 2 / 4.0
    assert goodput(results, {"ttft": 200.0}, 4.0) == 4 / 4.0
    assert goodput(results, {"e2el": 299.0}, 4.0) == 2 / 4.0


def test_failures_by_kind():
    errors = ["HTTP 503: busy", "", "HTTP 503: full", "no end: it stopped: so", "cancelled: x", "HTTP 503: busy", "odd"]
    assert failures([RequestResult(0.0, error=error) for error in errors]) == [
        {"kind": "HTTP 503", "count": 3, "first": "HTTP 503: busy"},
        {"kind": "no end", "count": 1, "first": "no end: it stopped: so"},
        {"kind": "odd", "count": 1, "first": "odd"},
    ]


def test_what_the_load_generator_took():
    figures = client_figures(
        cpu_seconds=0.5, duration=2.0, num_tokens=1000, send_delays=[0.001, 0.002, 0.009], waits=[0.0, 0.0, 1.5]
    )
    assert figures["client_cpu_share"] == 0.25
    assert figures["client_ceiling_tokens_per_s"] == 2000.0
    assert figures["median_send_delay_ms"] == pytest.approx(2.0)
    assert figures["max_send_delay_ms"] == pytest.approx(9.0)
    assert figures["median_wait_ms"] == 0.0
    assert figures["max_wait_ms"] == pytest.approx(1500.0)


def test_where_nothing_was_sent_nothing_was_late():
    figures = client_figures(cpu_seconds=0.0, duration=2.0, num_tokens=0, send_delays=[], waits=[])
    assert figures["client_ceiling_tokens_per_s"] is None
    assert figures["p99_send_delay_ms"] is None


def test_events_count_for_as_many_tokens_as_they_have_on_average():
    results = [result(0.5, [0.25], output_len=6, start=1.0), result(0.1, [0.2], error="no end")]
    assert token_events(results) == ([1.5, 1.75], [3.0, 3.0])


def test_prompts_of_unknown_length_make_no_figure():
    figures = throughput_figures([result(prompt_len=0), result()], 2.0)
    assert figures["total_input_tokens"] is figures["total_token_throughput"] is None
    assert figures["total_output_tokens"] == 2
    assert throughput_figures([result(), result(prompt_len=0, error="no end")], 2.0)["total_input_tokens"] == 10
