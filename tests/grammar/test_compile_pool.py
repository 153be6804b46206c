"""Threads that compile, and what happens to those that do not come to an end."""

import threading

import pytest

from pelton.grammar.compile_pool import CompilePool

SECONDS = 30.0


def wait_for(pool, *tasks):
    for _ in range(int(SECONDS / 0.05)):
        if all(task.is_done for task in tasks):
            return
        pool.wait(0.05)
    raise AssertionError("not done")


def test_results_and_errors():
    pool = CompilePool(2)

    def fail():
        raise ValueError("no grammar")

    tasks = [pool.submit(lambda number=number: number * number) for number in range(20)]
    failing = pool.submit(fail)
    wait_for(pool, *tasks, failing)
    assert [task.result for task in tasks] == [number * number for number in range(20)]
    assert str(failing.error) == "no grammar"
    assert failing.result is None


def test_no_more_threads_than_asked_for():
    pool, running, most = CompilePool(2), [], []
    barrier = threading.Barrier(2)

    def work():
        running.append(1)
        barrier.wait(SECONDS)
        most.append(len(running))
        barrier.wait(SECONDS)
        running.pop()

    wait_for(pool, *[pool.submit(work) for _ in range(6)])
    assert set(most) == {2}


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_thread_that_is_given_up_is_replaced(num_threads):
    pool, release = CompilePool(num_threads), threading.Event()
    stuck = [pool.submit(lambda: release.wait(SECONDS)) for _ in range(num_threads)]
    waiting = pool.submit(lambda: "done")
    try:
        pool.wait(0.05)
        assert not waiting.is_done
        assert pool.give_up(stuck[0]) is True
        assert pool.give_up(stuck[0]) is True  # again: of no consequence
        wait_for(pool, waiting)
    finally:
        release.set()
    wait_for(pool, *stuck)
    assert stuck[0].result is True
    after = [pool.submit(lambda: 1) for _ in range(5)]
    wait_for(pool, *after)


def test_what_has_not_begun_is_left_out():
    pool, release = CompilePool(1), threading.Event()
    stuck = pool.submit(lambda: release.wait(SECONDS))
    ran = []
    waiting = pool.submit(lambda: ran.append(1))
    assert pool.give_up(waiting) is False
    release.set()
    wait_for(pool, stuck, pool.submit(lambda: None))
    assert ran == []


def test_there_is_a_limit_to_giving_up():
    pool, release = CompilePool(1, max_given_up=2), threading.Event()
    stuck = []
    try:
        for _ in range(3):
            stuck.append(pool.submit(lambda: release.wait(SECONDS)))
            pool.give_up(stuck[-1])
        waiting = pool.submit(lambda: "done")
        pool.wait(0.1)
        assert not waiting.is_done
    finally:
        release.set()
    wait_for(pool, *stuck, waiting)
