"""A run may only be ended early where its whole length would have shown the same."""

import itertools
import random

import numpy as np
import pytest

from pelton.bench.bounds import parse_bound
from pelton.bench.serving.early_stop import is_proven, least_latencies, reason_to_stop
from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.statistics import latency_figures

GRID = (0.0, 100.0, 200.0, 300.0, 400.0, 1000.0)


def figure_of(bound, values):
    """What the result would say, of e2el in milliseconds."""
    results = [RequestResult(0.0, e2el=value / 1e3, output_len=2) for value in values]
    return latency_figures(results, ["e2el"], [25.0, 90.0, 99.0])[bound.metric]


@pytest.mark.parametrize("metric", ["p90", "p99", "p25", "median", "mean"])
@pytest.mark.parametrize("comparison", [">", ">="])
@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_proven_exactly_when_every_way_to_go_on_breaks_the_bound(metric, comparison, num):
    bounds = [parse_bound(f"{metric}_e2el_ms{comparison}{limit}") for limit in (100, 150, 200, 295, 300, 999)]
    verdicts = set()
    final = {values: figure_of(bounds[0], values) for values in itertools.combinations_with_replacement(GRID, num)}
    for at_least in itertools.combinations_with_replacement(GRID, num):
        ways = itertools.product(*[[end for end in GRID if end >= least] for least in at_least])
        figures = {final[tuple(sorted(ends))] for ends in ways}
        for bound in bounds:
            expected = all(map(bound.allows, figures))
            # The same arithmetic as in the figures: seconds to milliseconds.
            found = is_proven(bound, [least / 1e3 * 1e3 for least in at_least])
            assert found is expected, (bound, at_least)
            verdicts.add(found)
    assert verdicts == {True, False}


def test_nothing_is_proven_of_no_requests():
    assert not is_proven(parse_bound("p99_e2el_ms>=0"), [])


class Run:
    """A run whose latencies are known beforehand, looked at from any moment."""

    def __init__(self, seed, *, num=30, failing=0.1):
        rng = random.Random(seed)
        self.full = []
        for index in range(num):
            start, ttft = 0.02 * index + 1e-3, rng.expovariate(5.0)
            result = RequestResult(0.02 * index, start, ttft, [], ttft + rng.expovariate(2.0), 5, rng.choice([1, 4, 9]))
            if result.output_len == 1:
                result.e2el = ttft
            self.full.append(result)
        self.fails = {index for index in range(num) if rng.random() < failing}

    def at(self, now):
        """Results as they are then, and who is under way; failures are known when they have happened."""
        results, in_flight = [], set()
        for index, full in enumerate(self.full):
            result = RequestResult(full.due_time)
            elapsed = now - full.start_time
            if elapsed >= 0:
                result.start_time = full.start_time
                if elapsed >= full.ttft:
                    result.ttft = full.ttft
                if elapsed < full.e2el:
                    in_flight.add(index)
                elif index in self.fails:
                    result.error = "stream cut"
                else:
                    result.e2el, result.output_len = full.e2el, full.output_len
            results.append(result)
        return results, in_flight

    def end(self):
        return self.at(1e9)[0]


@pytest.mark.parametrize("latency", ["ttft", "e2el", "tpot"])
@pytest.mark.parametrize("metric", ["p50", "p90", "p99", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_is_never_stopped_that_would_have_met_the_bound(latency, metric, seed):
    run = Run(seed, failing=0.0)
    key = f"{metric}_{latency}_ms"
    final = latency_figures(run.end(), [latency], [50.0, 90.0, 99.0])[key]
    times = np.linspace(0.0, 12.0, 80)
    for factor in (0.2, 0.6, 0.95, 0.9999, 1.0, 1.0001, 1.05, 2.0):
        bound = parse_bound(f"{key}>{final * factor!r}")
        stops = [is_proven(bound, least_latencies(latency, *run.at(now), now)) for now in times]
        if final * factor >= final:
            assert not any(stops), (bound, times[stops.index(True)])
        else:
            assert stops[-1]
            assert stops == sorted(stops), "what is proven stays so"


def test_what_is_sure_is_seen_early():
    run = Run(1, failing=0.0)
    final = latency_figures(run.end(), ["e2el"], [90.0])["p90_e2el_ms"]
    bound = parse_bound(f"p90_e2el_ms>{final / 3}")
    times = np.linspace(0.0, 12.0, 80)
    first = next(now for now in times if is_proven(bound, least_latencies("e2el", *run.at(now), now)))
    results, in_flight = run.at(first)
    assert first < max(result.start_time + result.e2el for result in run.full)
    assert in_flight, "it has not waited for the end"
    assert sum(result.e2el > 0 for result in results) < len(results)


@pytest.mark.parametrize("seed", range(4))
def test_failed_requests_are_left_out_as_in_the_result(seed):
    run = Run(seed, failing=0.3)
    assert run.fails
    least = least_latencies("e2el", run.end(), set(), 1e9)
    assert np.percentile(least, 90) == latency_figures(run.end(), ["e2el"], [90.0])["p90_e2el_ms"]
    assert len(least) == len(run.full) - len(run.fails)


def test_a_request_that_is_late_already_counts():
    results = [RequestResult(0.0, start_time=0.1), RequestResult(0.0, start_time=0.1, ttft=0.2)]
    assert least_latencies("e2el", results, {0, 1}, 1.1) == pytest.approx([1000.0, 1000.0])
    assert least_latencies("ttft", results, {0, 1}, 1.1) == pytest.approx([1000.0, 200.0])
    assert least_latencies("tpot", results, {0, 1}, 1.1) == [0.0, 0.0]


def test_an_answer_whose_end_has_come_grows_no_more_while_its_stream_is_open():
    results = [RequestResult(0.0, start_time=0.1, ttft=0.2, e2el=0.5)]
    assert least_latencies("e2el", results, {0}, 9.0) == [500.0]


def test_requests_that_were_not_sent_may_be_quick():
    assert least_latencies("e2el", [RequestResult(0.0), RequestResult(0.0)], {1}, 3.0) == [0.0, 0.0]


def test_the_reason_names_the_bound_that_is_proven():
    bounds = [parse_bound("p99_e2el_ms>5000"), parse_bound("median_ttft_ms>50"), parse_bound("failed>1")]
    quick, slow = RequestResult(0.0, 0.0, ttft=0.01, e2el=0.1), RequestResult(0.0, 0.0, ttft=0.2, e2el=0.3)

    def reason(results, num_failed=0):
        return reason_to_stop(bounds, results, set(), num_failed=num_failed, now=2.0)

    assert reason([quick, quick, slow]) is None
    assert reason([quick, slow, slow]) == "median_ttft_ms>50 is sure after 2.0 s, unless requests under way fail"
    assert reason([quick], num_failed=1) is None
    assert reason([quick], num_failed=2) == "failed>1 is sure after 2.0 s"


def test_an_age_that_ends_in_a_failure_is_no_proof():
    """Such a request cannot be answered later than the limit: it has failed before."""
    waiting = [RequestResult(0.0, start_time=0.1), RequestResult(0.0, start_time=2.0)]

    def least(**limits):
        return least_latencies("e2el", waiting, {0, 1}, 4.0, limit=5000.0, **limits)

    assert least() == pytest.approx([3900.0, 2000.0])
    assert least(request_timeout=6.0, max_seconds=60.0) == pytest.approx([3900.0, 2000.0])
    assert least(request_timeout=5.0) == [0.0, 0.0]
    assert least(max_seconds=6.0) == pytest.approx([3900.0, 0.0]), "the second would take until 7 s"
    assert least_latencies("ttft", [RequestResult(0.0, 0.1, ttft=0.5)], {0}, 4.0, limit=9e9, max_seconds=6.0) == [500.0]
