"""What is tried next, on a surface that is known."""

import itertools
import random
import statistics

import pytest

from pelton.tune.goal import make_goal
from pelton.tune.ranking import ranked
from pelton.tune.search import NUM_RANDOM_TRIALS, propose
from pelton.tune.space import make_space
from pelton.tune.trial_log import COMPLETE, FAILED, SLO_MISSED, Trial
from tests.tune import stand_in
from tests.tune.helpers import SEARCH

GOAL = make_goal(["p99_e2el_ms<300"], None, None, has_request_rate=False)
SPACE = make_space(SEARCH, {}, num_cores=2, max_concurrency=1000)


def measured(number, settings):
    metrics = stand_in.metrics(settings, None)
    return Trial(number, settings, [], COMPLETE if GOAL.is_met(metrics) else SLO_MISSED, metrics=metrics)


def every_setting():
    columns = [[(one.name, value) for value in one.values] for one in SPACE.dimensions]
    return [SPACE.normal(dict(values)) for values in itertools.product(*columns)]


BEST = ranked([measured(number, settings) for number, settings in enumerate(every_setting())], GOAL)[0]


def search(seed, num_trials):
    trials = []
    while len(trials) < num_trials:
        trials.append(measured(len(trials), propose(SPACE, GOAL, trials, seed)))
    return trials


def share_of_best(trials):
    return ranked(trials, GOAL)[0].metrics["output_throughput"] / BEST.metrics["output_throughput"]


def test_the_optimum_is_known():
    assert BEST.settings == stand_in.BEST


@pytest.mark.parametrize("seed", range(3))
def test_it_is_found(seed):
    """Of 72 settings, within a third as many trials."""
    assert share_of_best(search(seed, 24)) > 0.9


def test_it_is_found_sooner_than_by_chance():
    def by_chance(seed):
        generator = random.Random(seed)
        trials = [measured(0, SPACE.default)]
        while len(trials) < 20:
            settings = SPACE.draw(generator, [trial.settings for trial in trials])
            trials.append(measured(len(trials), settings))
        return share_of_best(trials)

    seeds = range(10)
    found = statistics.mean(share_of_best(search(seed, 20)) for seed in seeds)
    assert found > statistics.mean(by_chance(seed) for seed in seeds)


def test_the_defaults_come_first_and_nothing_twice():
    tried = [trial.settings for trial in search(0, 40)]
    assert tried[0] == SPACE.default
    assert all(settings not in tried[:index] for index, settings in enumerate(tried))


def test_it_depends_on_seed_and_trials_only():
    trials = search(1, 16)
    assert [trial.settings for trial in trials] == [trial.settings for trial in search(1, 16)]
    assert [trial.settings for trial in trials] != [trial.settings for trial in search(2, 16)]
    for number in (1, NUM_RANDOM_TRIALS + 2, 15):
        assert propose(SPACE, GOAL, trials[:number], 1) == trials[number].settings


def test_in_the_end_there_is_nothing_left():
    space = make_space(["max_num_seqs=16,64"], {}, 2, 1000)
    trials = []
    while (settings := propose(space, GOAL, trials, 0)) is not None:
        trials.append(Trial(len(trials), settings, [], FAILED))
    assert len(trials) == 3


def test_the_order_of_trials():
    def trial(number, state, **metrics):
        return Trial(number, {}, [], state, metrics=metrics)

    trials = [
        trial(0, FAILED),
        trial(1, SLO_MISSED, output_throughput=900, p99_e2el_ms=900),
        trial(2, COMPLETE, output_throughput=1, p99_e2el_ms=200),
        trial(3, SLO_MISSED, output_throughput=1, p99_e2el_ms=301),
        trial(4, COMPLETE, output_throughput=2, p99_e2el_ms=299),
    ]
    assert [one.number for one in ranked(trials, GOAL)] == [4, 2, 3, 1, 0]
    lowest = make_goal(["p99_e2el_ms<300"], None, "p99_e2el_ms", has_request_rate=False)
    assert [one.number for one in ranked(trials, lowest)] == [2, 4, 3, 1, 0]


def test_what_the_server_refuses_is_not_proposed():
    space = make_space(["quantization=auto,int8,int4", "dtype=float32,auto", "max_num_seqs=4,8,16"], {}, 2, 1000)
    trials = []
    while (settings := propose(space, GOAL, trials, 0)) is not None:
        assert settings["dtype"] == "auto" or settings["quantization"] == "auto"
        trials.append(Trial(len(trials), settings, [], FAILED))
    assert len(trials) == 4 * 4


def test_failures_of_all_kinds_do_not_disturb_it():
    trials = search(0, NUM_RANDOM_TRIALS + 3)
    failed = [Trial(trial.number, trial.settings, [], FAILED) for trial in trials]
    assert propose(SPACE, GOAL, failed, 0) not in [trial.settings for trial in failed]
