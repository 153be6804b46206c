"""Constraints of one step on several threads: the same as one after the other."""

import threading

import pytest

from pelton.core.request import ConstraintError
from pelton.grammar import parallel
from pelton.grammar.parallel import ParallelAdvance


class Constraint:
    def __init__(self, group, barrier=None):
        self.group, self.barrier = group, barrier
        self.threads = []

    def advance(self, token_ids):
        self.threads.append(threading.current_thread())
        if self.barrier is not None:
            self.barrier.wait(30)
        if token_ids == [13]:
            raise ConstraintError("unlucky")
        return [token_id + 1 for token_id in token_ids]


@pytest.fixture
def advance(monkeypatch):
    monkeypatch.setattr(parallel, "MIN_SECONDS", -1.0)
    made = ParallelAdvance(3)
    yield made
    made.shutdown()


def test_results_are_in_order(advance):
    constraints = [Constraint(number % 5) for number in range(40)]
    for step in range(3):
        followed = [(constraint, [number + step]) for number, constraint in enumerate(constraints)]
        for number, result in enumerate(advance(followed)):
            if number + step == 13:
                assert str(result) == "unlucky"
            else:
                assert result == [number + step + 1]


def test_groups_run_at_the_same_time(advance):
    """Each has to wait for the others; those of one group are one thread's."""
    barrier = threading.Barrier(3)
    constraints = [Constraint(group, barrier) for group in (0, 1, 2, 0, 1, 2)]
    advance([(constraint, [1]) for constraint in constraints])
    threads = [constraint.threads for constraint in constraints]
    assert threads[:3] == threads[3:]
    assert len({id(thread) for (thread,) in threads}) == 3


def test_quick_ones_stay_on_this_thread(advance, monkeypatch):
    monkeypatch.setattr(parallel, "MIN_SECONDS", 1000.0)
    constraints = [Constraint(group) for group in range(3)]
    for _ in range(3):
        advance([(constraint, [1]) for constraint in constraints])
    assert {thread for constraint in constraints for thread in constraint.threads} == {threading.current_thread()}
