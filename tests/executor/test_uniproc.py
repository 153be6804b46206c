"""The executor in the process of the engine core: which step's result or error comes out where."""

import pytest

from pelton.core.messages import ModelRunnerOutput, SchedulerOutput
from pelton.executor import UniprocExecutor


def make_step(step_id: int) -> SchedulerOutput:
    return SchedulerOutput(step_id, [], [], [], [], [], {}, [])


class FakeWorker:
    """Runs steps, except where `raises` has something to raise instead."""

    def __init__(self) -> None:
        self.raises: dict[int, BaseException] = {}
        self.executed: list[int] = []
        self.is_shut_down = False

    def describe(self) -> str:
        return "no kernels, 2 threads"

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self.executed.append(step.step_id)
        if step.step_id in self.raises:
            raise self.raises[step.step_id]
        return ModelRunnerOutput(step.step_id, [], {})

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


@pytest.fixture
def executor(worker) -> UniprocExecutor:
    return UniprocExecutor(worker)


def launch(executor: UniprocExecutor, *step_ids: int) -> None:
    for step_id in step_ids:
        executor.launch(make_step(step_id))


def assert_collects(executor: UniprocExecutor, *step_ids: int) -> None:
    assert [executor.collect(step_id).step_id for step_id in step_ids] == list(step_ids)


def assert_not_run(executor: UniprocExecutor, *step_ids: int) -> None:
    for step_id in step_ids:
        with pytest.raises(RuntimeError, match=r"the step was (interrupted|not run)"):
            executor.collect(step_id)


def test_results_in_order(executor, worker):
    launch(executor, 1)
    assert_collects(executor, 1)
    launch(executor, 2, 3)
    assert_collects(executor, 2)
    launch(executor, 4)
    assert_collects(executor, 3, 4)
    assert worker.executed == [1, 2, 3, 4]


def test_an_error_is_raised_by_its_own_collect(executor, worker):
    worker.raises[2] = ValueError("the model broke")
    launch(executor, 1, 2)
    assert_collects(executor, 1)
    with pytest.raises(ValueError, match="the model broke") as caught:
        executor.collect(2)
    assert caught.value is worker.raises[2]


def test_steps_launched_before_a_failure_was_collected_do_not_run(executor, worker):
    worker.raises = {2: ValueError("the model broke"), 3: AssertionError("must not run")}
    launch(executor, 1, 2, 3)
    assert_collects(executor, 1)
    launch(executor, 4)
    assert worker.executed == [1, 2]
    with pytest.raises(ValueError, match="the model broke"):
        executor.collect(2)
    launch(executor, 5)
    assert_not_run(executor, 3, 4)
    launch(executor, 6)
    assert_collects(executor, 5, 6)
    assert worker.executed == [1, 2, 5, 6]


def test_failures_one_after_the_other(executor, worker):
    worker.raises = {1: ValueError("first"), 3: ValueError("third")}
    launch(executor, 1, 2)
    with pytest.raises(ValueError, match="first"):
        executor.collect(1)
    launch(executor, 3, 4)
    assert_not_run(executor, 2)
    with pytest.raises(ValueError, match="third"):
        executor.collect(3)
    assert_not_run(executor, 4)
    launch(executor, 5)
    assert_collects(executor, 5)
    assert worker.executed == [1, 3, 5]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_goes_through_and_its_step_fails(executor, worker, interrupt):
    worker.raises[2] = interrupt()
    launch(executor, 1)
    with pytest.raises(interrupt):
        launch(executor, 2)
    launch(executor, 3)
    assert_collects(executor, 1)
    assert_not_run(executor, 2)
    launch(executor, 4)
    assert_not_run(executor, 3)
    assert_collects(executor, 4)
    assert worker.executed == [1, 2, 4]


def test_every_result_is_handed_out_once(executor):
    launch(executor, 1)
    assert_collects(executor, 1)
    assert_not_run(executor, 1)


def test_the_worker_is_described(executor):
    assert executor.describe() == "no kernels, 2 threads"


def test_shutdown(executor, worker):
    launch(executor, 1)
    executor.shutdown()
    assert worker.is_shut_down
    assert_not_run(executor, 1)
