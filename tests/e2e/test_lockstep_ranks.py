"""Engine cores whose steps wait for each other: they step, and die, together."""

import os
import signal
from collections.abc import Iterator

import pytest

from pelton.engine.core_processes import MAX_RESTARTS
from pelton.engine.lockstep import SYNC_INTERVAL
from tests.support.http_client import check_error, is_idle, post, wait_for
from tests.support.live_streams import (
    NOT_NOW,
    LiveStream,
    answers,
    body_of,
    core_ended,
    core_of,
    error_of,
    health,
    kill,
)
from tests.support.lockstep_barrier import LockstepBarrier
from tests.support.served import Served

FLAGS = ("--data-parallel-size", "2", "--distributed-executor-backend")
BACKEND = "tests.support.serving_executors:BlockingExecutor"
TOGETHER = "another rank of its group ended"


@pytest.fixture(scope="module")
def barrier() -> Iterator[LockstepBarrier]:
    with LockstepBarrier(2) as barrier:
        yield barrier


def start(barrier: LockstepBarrier) -> Served:
    return Served("smollm2", *FLAGS, BACKEND, environment={"FAKE_BARRIER_PORT": str(barrier.port)})


@pytest.fixture(scope="module")
def served(barrier) -> Iterator[Served]:
    with start(barrier) as served:
        yield served


def pause(barrier: LockstepBarrier, served: Served) -> None:
    """Until the wave has ended."""
    wait_for(lambda: is_idle(served), "rest")
    seen = [-1]

    def is_quiet() -> bool:
        seen.append(len(barrier.rounds))
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    wait_for(is_quiet, "the end of the wave")


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_has_all_the_work(served, barrier, rank):
    """The other one steps with it, and both pause soon after."""
    pause(barrier, served)
    before = len(barrier.rounds)
    LiveStream(served, [5, rank], 100, rank=rank).check_finished()
    pause(barrier, served)
    rounds = barrier.rounds[before:]
    assert [each.num_steps for each in rounds].count(1) == 100
    assert all(each in ((1, 1), (0, 2)) for each in rounds)
    assert len(rounds) % SYNC_INTERVAL == 0
    assert 100 < len(rounds) < 100 + 2 * SYNC_INTERVAL


def test_an_uneven_load(served, barrier):
    pause(barrier, served)
    before = len(barrier.rounds)
    streams = [LiveStream(served, [6, index], 20 * index + 1, rank=int(index > 4)) for index in range(8)]
    for stream in streams:
        stream.check_finished()
    pause(barrier, served)
    rounds = barrier.rounds[before:]
    assert {(2, 0), (1, 1), (0, 2)} >= {tuple(each) for each in rounds} >= {(2, 0), (1, 1)}
    assert len(rounds) % SYNC_INTERVAL == 0


def test_a_rank_is_killed_in_the_middle_of_a_wave(served, barrier):
    for rank in range(2):
        streams = [LiveStream(served, [7, index], 8000, rank=index) for index in range(2)]
        for stream in streams:
            stream.read(5)
        before = [core_of(served, each) for each in range(2)]
        kill(before[rank])
        streams[rank].check_failed(500, core_ended(rank))
        streams[1 - rank].check_failed(500, core_ended(1 - rank, TOGETHER))
        wait_for(lambda: all(answers(served, [8, each], each) for each in range(2)), "the restarted ranks")
        assert not set(before) & set(served.children("core_proc"))
    assert health(served) == 200


def test_both_ranks_are_killed_at_once(served, barrier):
    """And are restarted once each."""
    streams = [LiveStream(served, [9, index], 8000, rank=index) for index in range(2)]
    for stream in streams:
        stream.read(5)
    before = set(served.children("core_proc"))
    assert len(before) == 2
    os.kill(served.pid, signal.SIGSTOP)
    try:
        for pid in before:
            kill(pid)
    finally:
        os.kill(served.pid, signal.SIGCONT)
    for rank, stream in enumerate(streams):
        stream.check_failed(500, core_ended(rank), core_ended(rank, TOGETHER))
    wait_for(lambda: all(answers(served, [10, rank], rank) for rank in range(2)), "the restarted ranks")
    after = served.children("core_proc")
    assert len(after) == 2
    assert not before & set(after)


def test_the_group_stays_dead_when_a_rank_does():
    with LockstepBarrier(2) as barrier, start(barrier) as served:
        for attempt in range(MAX_RESTARTS + 1):
            stream = LiveStream(served, [11, attempt], 8000, rank=1)
            stream.read(5)
            kill(core_of(served, 0))
            stream.check_failed(500, core_ended(1, TOGETHER))
            if attempt < MAX_RESTARTS:
                wait_for(lambda: all(answers(served, [12, rank], rank) for rank in range(2)), "the restarted ranks")
        assert served.log.count("for good") == 2
        assert served.children("core_proc") == []
        assert health(served) == 503
        answer = post(served, "/v1/completions", body_of([13], 4))
        assert check_error(answer, 503) == error_of(503, NOT_NOW)["error"]
    assert served.process.returncode == 0
