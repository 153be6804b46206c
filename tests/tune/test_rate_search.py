"""The highest rate that meets an SLO."""

import math

import pytest

from pelton.tune.rate_search import MAX_LOADS, MAX_LOADS_OF_LOSERS, RESOLUTION, best_load, search_rate
from pelton.tune.server import ProcessError
from pelton.tune.trial_log import Load


def loads_for(highest, start, best=0.0, capacity=None):
    """`highest`: rate that meets the SLO."""

    def measure(rate, stop_early):
        assert stop_early == (rate is not None)
        is_met = (math.inf if rate is None else rate) <= highest
        return Load(rate, is_met, 1.0, f"{rate}", {"request_throughput": capacity or highest * 1.7})

    return search_rate(measure, start, best)


@pytest.mark.parametrize("highest", [0.2, 1.0, 3.1, 1234.5])
@pytest.mark.parametrize("share", [1.1, 1.5, 2.5, 4.0])
def test_the_server_is_not_known(highest, share):
    loads = loads_for(highest, None, capacity=highest * share)
    assert loads[0].request_rate is None
    assert len(loads) <= MAX_LOADS
    assert highest / RESOLUTION / 1.1 <= best_load(loads).request_rate <= highest


@pytest.mark.parametrize("ratio", [1.0, 1.05, 1.3, 2.0])
def test_better_than_the_best(ratio):
    loads = loads_for(7.0 * ratio, 7.0, best=7.0)
    assert loads[0].request_rate == 7.0
    assert 7.0 * ratio / RESOLUTION <= best_load(loads).request_rate <= 7.0 * ratio


def test_losers_are_not_measured_any_closer():
    loads = loads_for(5.0, 7.0, best=7.0)
    assert len(loads) == MAX_LOADS_OF_LOSERS
    assert 3.0 <= best_load(loads).request_rate <= 5.0
    assert best_load(loads_for(1.0, 7.0, best=7.0)) is None


def test_no_limit_is_met():
    (load,) = loads_for(math.inf, None)
    assert load.request_rate is None
    assert best_load([load]) is load


def test_a_server_that_answers_nothing():
    load = Load(None, False, 1.0, "", {"request_throughput": 0.0}, failure="3 requests failed: no memory")
    with pytest.raises(ProcessError, match=r"^3 requests failed: no memory$"):
        search_rate(lambda rate, stop_early: load, None, 0.0)


def test_none_meets_it():
    loads = loads_for(0.0, None, capacity=8.0)
    assert len(loads) == MAX_LOADS
    assert best_load(loads) is None
    rates = [load.request_rate for load in loads[1:]]
    assert rates == sorted(rates, reverse=True)
