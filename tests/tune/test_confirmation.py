"""Whether the best settings are better than the default once more."""

from pelton.tune.confirmation import Confirmation
from pelton.tune.goal import make_goal
from pelton.tune.trial_log import Load

GOAL = make_goal(["p99_e2el_ms<500"], None, None, has_request_rate=False)


def load(throughput, p99=400):
    return Load(None, True, 1.0, "", {"output_throughput": throughput, "p99_e2el_ms": p99})


def confirmed(*rounds):
    confirmation = Confirmation(GOAL)
    for default, best in rounds:
        confirmation.add(default, best)
    return confirmation


def test_the_median_decides():
    assert confirmed((load(100), load(300)), (load(100), load(110)), (load(100), load(90))).gain == 1.1
    assert confirmed((load(100), load(110))).is_worth_it
    assert not confirmed((load(100), load(104))).is_worth_it


def test_the_slo_is_met_again_by_the_median():
    assert confirmed((load(100), load(300, 501)), (load(100), load(300, 450)), (load(100), load(300))).is_worth_it
    missed = confirmed((load(100), load(300, 501)), (load(100), load(300, 520)), (load(100), load(300)))
    assert not missed.is_best_confirmed
    assert not missed.is_worth_it
    assert not confirmed((load(100), load(300, None))).is_best_confirmed


def test_a_default_that_misses_the_slo_is_no_rival():
    assert confirmed((load(900, 501), load(300))).is_worth_it
    assert confirmed((None, load(300))).is_worth_it


def test_what_fails():
    confirmation = confirmed(("no answer", load(300)), (load(100), "no memory"))
    assert confirmation.failures == ["the default settings: no answer", "the best settings: no memory"]
    assert confirmation.gain is None
    assert not confirmed((load(100), "no memory")).is_worth_it
