"""Objectives, and how far from them a load is."""

import math
import re

import pytest

from pelton.tune.goal import make_goal


def goal_of(*slos, maximize=None, minimize=None, has_request_rate=False):
    return make_goal(slos, maximize, minimize, has_request_rate=has_request_rate)


def test_objectives():
    assert (goal_of().objective, goal_of().is_maximized) == ("output_throughput", True)
    assert goal_of(maximize="request_throughput").objective == "request_throughput"
    lowest = goal_of("p90_ttft_ms<5", "p99_e2el_ms<50", has_request_rate=True)
    assert (lowest.objective, lowest.is_maximized) == ("p90_ttft_ms", False)
    assert goal_of("p99_e2el_ms<5", minimize="mean_itl_ms").metrics == ["mean_itl_ms", "p99_e2el_ms"]


def test_percentiles_that_are_needed_are_measured():
    assert goal_of("p99.9_e2el_ms<5", minimize="p10_ttft_ms").percentiles == "10,50,90,95,99,99.9"


def test_met_and_missed():
    goal = goal_of("p99_e2el_ms<500", "mean_ttft_ms<=100")
    assert goal.is_met({"p99_e2el_ms": 499, "mean_ttft_ms": 100})
    assert not goal.is_met({"p99_e2el_ms": 500, "mean_ttft_ms": 100})
    assert not goal.is_met({"p99_e2el_ms": None, "mean_ttft_ms": 100})
    assert goal.excess({"p99_e2el_ms": 1000, "mean_ttft_ms": 100}) == 2
    assert goal.excess({"p99_e2el_ms": 1000, "mean_ttft_ms": 400}) == 4
    assert goal.excess({"p99_e2el_ms": 1, "mean_ttft_ms": 1}) == 1
    assert goal.excess({"p99_e2el_ms": None, "mean_ttft_ms": 1}) == math.inf


def test_who_was_stopped_sooner_was_farther():
    goal = goal_of("p99_e2el_ms<500")

    def stopped(completed):
        return goal.excess({"p99_e2el_ms": 400, "completed": completed, "cancelled": 100 - completed})

    assert 1 < stopped(90) < stopped(50) < stopped(1) < stopped(0) == math.inf
    assert goal.excess({"p99_e2el_ms": 400, "completed": 50, "failed": 50}) == 2


def test_gains():
    assert goal_of().gain({"output_throughput": 30}, {"output_throughput": 20}) == 1.5
    assert goal_of().gain({"output_throughput": 30}, {"output_throughput": 0}) > 1e6
    lowest = goal_of(minimize="p50_ttft_ms")
    assert lowest.gain({"p50_ttft_ms": 20}, {"p50_ttft_ms": 30}) == 1.5


@pytest.mark.parametrize(
    ("slos", "options", "message"),
    [
        (["p99_e2el"], {}, "--slo: 'p99_e2el' is no bound"),
        (["p99_latency_ms<5"], {}, "--slo: 'p99_latency_ms<5' has an unknown metric"),
        (["p99_e2el_ms<0"], {}, "--slo p99_e2el_ms<0 has a limit that is not above 0"),
        (["request_goodput>1"], {}, "--slo request_goodput>1 is on request_goodput, which is no latency"),
        (["failed<1"], {}, "--slo failed<1 is on failed, which is no latency; bound one, such as 'p99_e2el_ms<500'"),
        (["p99_e2el_ms>=5"], {}, "--slo p99_e2el_ms>=5 is a bound from below; give one from above"),
        ([], {"maximize": "speed"}, "--maximize must be one of request_throughput, output_throughput"),
        ([], {"minimize": "output_throughput"}, "--minimize must be a latency such as p50_ttft_ms"),
        ([], {"maximize": "output_throughput", "minimize": "p50_ttft_ms"}, "--maximize and --minimize are both given"),
        ([], {"has_request_rate": True}, "such as --minimize p50_ttft_ms"),
    ],
)
def test_refused(slos, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        goal_of(*slos, **options)
