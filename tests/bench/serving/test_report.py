import re

from pelton.bench.serving.report import serve_report

RESULT = {
    "model_id": "smollm2",
    "server": {"url": "http://127.0.0.1:8000"},
    "num_prompts": 10,
    "dataset": {"dataset_name": "random"},
    "request_rate": 2.5,
    "max_concurrency": None,
    "completed": 9,
    "failed": 0,
    "cancelled": 0,
    "duration": 4.0,
    "max_concurrent_requests": 3,
    "total_input_tokens": 90,
    "cached_tokens": 16,
    "total_output_tokens": 45,
    "counted_by": "usage",
    "tokens_per_event": 1.25,
    "request_throughput": 2.25,
    "output_throughput": 11.25,
    "max_output_tokens_per_s": 20.0,
    "total_token_throughput": 33.75,
    "client_cpu_share": 0.05,
    "client_ceiling_tokens_per_s": 15000.4,
    "median_send_delay_ms": 0.12,
    "max_send_delay_ms": 3.4,
    "failures": [],
    "stopped": None,
    "warnings": [],
    **{f"{name}_{latency}_ms": value for latency in ("ttft", "e2el")
       for name, value in (("mean", 12.345), ("median", 1.0), ("std", 0.0), ("p50", 1.0), ("p99.9", 12345.678))},
}  # fmt: skip


def report(**changes):
    return serve_report(RESULT | changes, latencies=["ttft", "e2el"], percentiles=[50.0, 99.9])


def test_figures_are_shown_with_their_names():
    text = report()
    for part in (
        "smollm2 at http://127.0.0.1:8000",
        "10 requests of dataset random, 2.5 requests/s",
        "9 completed, 0 failed, in 4.00 s; up to 3 at once",
        "90 input (16 cached), 45 output, counted by usage; 1.25 per event",
        "2.25 requests/s, 11.2 output tokens/s (at most 20 in a second), 33.8 tokens/s in all",
        "5% of a processor, could take at most 15000 tokens/s",
        "0.12 ms (median), 3.40 ms (most)",
    ):
        assert part in text
    for absent in ("Warning", "Failed", "Stopped", "cancelled", "goodput", "turn"):
        assert absent not in text


def test_the_table_is_in_columns():
    rows = [line for line in report().splitlines() if line.startswith(("Milliseconds", "ttft", "e2el"))]
    assert rows[0].split()[1:] == ["mean", "median", "std", "p50", "p99.9"]
    for row in rows[1:]:
        assert re.findall(r"[\d.]+", row.split(")")[1]) == ["12.35", "1.00", "0.00", "1.00", "12345.68"]
    assert len(set(map(len, rows))) == 1


def test_what_went_wrong_is_at_the_end():
    text = report(
        failed=3,
        cancelled=2,
        failures=[{"kind": "HTTP 503", "count": 3, "first": "HTTP 503: busy\x1b[1m"}],
        stopped="p99_e2el_ms>5 is sure after 1.0 s, whatever the rest does",
        warnings=["the load generator was busy"],
    )
    assert "3 failed, 2 cancelled" in text
    assert text.splitlines()[-3:] == [
        "Failed: 3 times HTTP 503: busy [1m",
        "Stopped early: p99_e2el_ms>5 is sure after 1.0 s, whatever the rest does",
        "Warning: the load generator was busy",
    ]


def test_what_was_not_measured_is_a_dash():
    text = report(mean_ttft_ms=None, tokens_per_event=None, client_ceiling_tokens_per_s=None, median_send_delay_ms=None)
    assert "- per event" in text
    assert "at most - tokens/s" in text


def test_loads_in_words():
    assert "all at once, at most 4 at once" in report(
        request_rate="inf", max_concurrency=4, median_wait_ms=2.0, max_wait_ms=9.0
    )
    ramp = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0}
    assert "1 to 8 requests/s" in report(request_rate="inf", **ramp)


def test_waiting_and_goodput():
    text = report(max_concurrency=4, median_wait_ms=2.0, max_wait_ms=9.0, request_goodput=1.5)
    assert "Waited for their turn, which is in no latency: 2.00 ms (median), 9.00 ms (most)" in text
    assert "2.25 requests/s, 1.50 of them within --goodput" in text
