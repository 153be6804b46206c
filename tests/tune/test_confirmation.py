"""Whether the best settings are better than the default once more."""

import math
import random
from dataclasses import replace

import pytest

from pelton.tune.confirmation import Candidate, Confirmation, candidates, confirm
from pelton.tune.goal import make_goal
from pelton.tune.ranking import ranked
from pelton.tune.rate_search import RESOLUTION, best_load, search_rate
from pelton.tune.trial_log import COMPLETE, FAILED, SLO_MISSED, Load, Trial

GOAL = make_goal(["p99_e2el_ms<500"], None, None, has_request_rate=False)


def load(throughput, p99=400.0, rate=None, **given):
    metrics = {"output_throughput": throughput, "request_throughput": throughput, "p99_e2el_ms": p99}
    return Load(rate, GOAL.is_met(metrics), 1.0, "", metrics, **given)


def trial(number, throughput, state=COMPLETE, rate=None):
    return Trial(number, {}, [], state, metrics=load(throughput).metrics, request_rate=rate)


def confirmed(*rounds, num_rounds=3):
    confirmation = Confirmation(GOAL, Candidate(trial(1, 300), None), num_rounds)
    for default, best in rounds:
        confirmation.default.append(default)
        confirmation.best.append(best)
    return confirmation


def test_the_median_decides():
    found = confirmed((load(100), load(300)), (load(100), load(110)), (load(100), load(101)))
    assert (found.gain, found.is_worth_it, found.is_finished) == (1.1, True, True)
    assert not confirmed((load(100), load(104))).is_worth_it


def test_a_gain_that_one_round_denies_is_none():
    assert not confirmed((load(100), load(300)), (load(100), load(110)), (load(100), load(99))).is_worth_it


def test_the_slo_is_to_be_kept_always():
    kept, missed = (load(100), load(300)), (load(100), load(300, 501))
    assert confirmed(kept, kept, kept).is_worth_it
    refuted = confirmed(kept, missed, kept)
    assert (refuted.is_refuted, refuted.is_worth_it) == (True, False)


def test_a_default_that_misses_the_slo_mostly_is_no_rival():
    missed, kept = (load(900, 501), load(300)), (load(400), load(300))
    assert confirmed(missed, missed, kept).is_worth_it
    assert not confirmed(missed, kept, kept).is_worth_it


def test_what_fails():
    assert confirmed((load(100), "no memory")).is_refuted
    assert confirmed((load(100), replace(load(300, failure="3 requests failed"), is_slo_met=False))).is_refuted
    silent = confirmed(("no answer", load(300)))
    assert (silent.gain, silent.is_default_good, silent.is_worth_it) == (None, False, True)


class TestCandidates:
    def test_those_next_in_rank(self):
        trials = [trial(0, 100), trial(1, 200), trial(2, 103), trial(3, 150), trial(4, 900, SLO_MISSED)]
        found = candidates(trials, GOAL, is_rate_sought=False)
        assert [one.trial.number for one in found] == [1, 3]  # 2 is hardly better

    def test_those_that_are_better_than_a_default_that_missed_the_slo(self):
        trials = [trial(0, 300, SLO_MISSED), *(trial(number, 100 - number) for number in range(1, 6))]
        assert [one.trial.number for one in candidates(trials, GOAL, is_rate_sought=False)] == [1, 2, 3]

    def test_lower_rates(self):
        trials = [trial(0, 10, rate=10.0), trial(1, 20, rate=20.0), trial(2, 12, rate=12.0)]
        rates = [20.0, 20 / RESOLUTION, 20 / RESOLUTION**2]
        assert candidates(trials, GOAL, is_rate_sought=True) == [Candidate(trials[1], rate) for rate in rates]
        trials[0] = trial(0, 17.5, rate=17.5)
        assert candidates(trials, GOAL, is_rate_sought=True) == [Candidate(trials[1], 20.0)]
        trials[0] = trial(0, 19.5, rate=19.5)
        assert candidates(trials, GOAL, is_rate_sought=True) == []

    def test_no_limit(self):
        trials = [trial(0, 10, rate=10.0), trial(1, 20)]
        assert candidates(trials, GOAL, is_rate_sought=True) == [Candidate(trials[1], None)]


class TestRounds:
    def confirm(self, *, misses=(), default=COMPLETE, stop_at=None):
        """The trials that were measured, and what came of it. `misses`: trials that miss the SLO."""
        trials = [trial(0, 100, default), trial(1, 300), trial(2, 200)]
        measured, confirmations = [], []

        def measure(one, rate, number):
            if len(measured) == stop_at:
                raise KeyboardInterrupt
            measured.append((number, one.number))
            return load(one.metrics["output_throughput"], 600.0 if one.number in misses else 400.0)

        found = candidates(trials, GOAL, is_rate_sought=False)
        try:
            confirm(GOAL, found, trials[0], 3, measure, confirmations)
        except KeyboardInterrupt:
            assert stop_at is not None
        return measured, confirmations

    def test_in_turn(self):
        measured, (found,) = self.confirm()
        assert measured == [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]
        assert found.gains == [3.0, 3.0, 3.0]

    def test_the_next_in_rank_if_the_best_misses(self):
        measured, (first, second) = self.confirm(misses=[1])
        assert measured == [(1, 0), (1, 1), (1, 0), (1, 2), (2, 2), (2, 0), (3, 0), (3, 2)]
        assert (first.is_refuted, second.is_worth_it, second.gain) == (True, True, 2.0)

    def test_a_default_that_failed_is_left_out(self):
        measured, (found,) = self.confirm(default=FAILED)
        assert measured == [(1, 1), (2, 1), (3, 1)]
        assert found.is_finished
        assert found.is_worth_it

    def test_what_was_measured_before_the_end_stays(self):
        _, (found,) = self.confirm(stop_at=3)
        assert (len(found.default), len(found.best), found.is_finished, found.is_worth_it) == (1, 2, False, True)
        _, (refuted,) = self.confirm(stop_at=2, misses=[1])
        assert (refuted.is_refuted, refuted.is_worth_it) == (True, False)
        assert self.confirm(stop_at=0)[1] == []


def recommends(seed, better=1.0):
    """Whether a search for the highest rate among noisy settings recommends any; the last can do more than the rest."""
    generator = random.Random(seed)
    trials = []

    def measure(number, rate):
        most = 100.0 * (better if number == 11 else 1.0) * math.exp(generator.gauss(0.0, 0.04))
        if rate is None:
            return load(most, 5000.0)
        return load(min(rate, most), 100 / max(0.01, 1 - rate / most), rate)

    for number in range(12):
        best = next((one for one in ranked(trials, GOAL) if one.state == COMPLETE), None)
        rate = best.request_rate if best else None
        loads = search_rate(lambda rate, _, number=number: measure(number, rate), rate, rate or 0.0)
        met = best_load(loads)
        if met is None:
            trials.append(Trial(number, {}, [], SLO_MISSED, metrics=loads[0].metrics))
        else:
            trials.append(Trial(number, {}, [], COMPLETE, metrics=met.metrics, request_rate=met.request_rate))
    confirmations = []
    found = candidates(trials, GOAL, is_rate_sought=True)
    confirm(GOAL, found, trials[0], 3, lambda one, rate, _: measure(one.number, rate), confirmations)
    return bool(confirmations) and confirmations[-1].is_worth_it


@pytest.mark.parametrize(("better", "least", "most"), [(1.0, 0, 10), (1.3, 90, 100)])
def test_noise_alone_is_hardly_ever_recommended(better, least, most):
    assert least <= sum(recommends(seed, better) for seed in range(100)) <= most
