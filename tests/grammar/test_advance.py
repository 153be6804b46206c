"""Many constraints at once, on several threads."""

import threading

import pytest

from pelton.core.request import ConstraintError
from pelton.grammar.advance import ParallelAdvance

SECONDS = 30.0


class Echo:
    """Says which tokens it was told of, and by which thread. Negative ones are refused."""

    is_complete = False

    def __init__(self, number, meet=None):
        self.number, self.meet, self.thread = number, meet, None

    def advance(self, token_ids):
        self.thread = threading.current_thread().name
        if self.meet is not None:
            self.meet.wait(SECONDS)
        if token_ids[0] < 0:
            raise ConstraintError(f"not {token_ids[0]}")
        return [self.number, *token_ids]

    def mask_bytes(self):
        return b""


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 1, 2, 7, 8, 9, 13, 64])
def test_each_gets_its_own_answer_in_order(num_threads, number):
    advance = ParallelAdvance(num_threads)
    for _ in range(2):
        answers = advance([(Echo(index), [-1] if index % 5 == 4 else [100 + index]) for index in range(number)])
        assert len(answers) == number
        for index, answer in enumerate(answers):
            if index % 5 == 4:
                assert str(answer) == "not -1"
            else:
                assert answer == [index, 100 + index]


def test_two_threads_work_at_the_same_time():
    meet = threading.Barrier(2)  # would break if one came after the other
    entries = [Echo(index, meet if index < 2 else None) for index in range(8)]
    ParallelAdvance(2)([(entry, [1]) for entry in entries])
    assert len({entry.thread for entry in entries}) == 2


def test_a_few_are_not_worth_a_thread():
    entries = [Echo(index) for index in range(7)]
    ParallelAdvance(4)([(entry, [1]) for entry in entries])
    assert {entry.thread for entry in entries} == {threading.current_thread().name}


def test_what_is_no_constraints_fault_is_raised():
    class Broken(Echo):
        def advance(self, token_ids):
            raise KeyError("a bug")

    with pytest.raises(KeyError):
        ParallelAdvance(2)([(Broken(index), [1]) for index in range(16)])
