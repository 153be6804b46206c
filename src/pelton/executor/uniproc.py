"""One worker, in the process of the engine core."""

from collections.abc import Sequence

from pelton.core.kv_spec import KVCacheGroup, KVCacheSpec
from pelton.core.messages import ModelRunnerOutput, SchedulerOutput
from pelton.executor.base import Executor, Worker


class UniprocExecutor(Executor):
    """Runs every step to its end at `launch`; `collect` hands out what came of it.

    A step without a result did not run, since an earlier one had failed.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._results: dict[int, ModelRunnerOutput | Exception] = {}

    def describe(self) -> str:
        return self._worker.describe()

    def kv_specs(self) -> list[KVCacheSpec]:
        return self._worker.kv_specs()

    def available_memory(self) -> int:
        return self._worker.available_memory()

    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None:
        self._worker.initialize(groups, num_blocks, max_model_len)

    def launch(self, step: SchedulerOutput) -> None:
        if any(isinstance(result, Exception) for result in self._results.values()):
            return
        self._results[step.step_id] = RuntimeError("the step was interrupted")  # unless it comes to its end
        try:
            self._results[step.step_id] = self._worker.execute(step)
        except Exception as error:  # kept for `collect`, whose step it belongs to
            self._results[step.step_id] = error

    def collect(self, step_id: int) -> ModelRunnerOutput:
        result = self._results.pop(step_id, None)
        if result is None:
            raise RuntimeError("the step was not run: an earlier one had failed")
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None:
        self._results.clear()
        self._worker.shutdown()
