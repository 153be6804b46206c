"""One worker, in the process of the engine core."""

from collections import deque
from collections.abc import Sequence

from pelton.core.kv_spec import KVCacheGroup, KVCacheSpec
from pelton.core.messages import ModelRunnerOutput, SchedulerOutput
from pelton.executor.base import Executor
from pelton.runner.worker import Worker


class _NotRunError(RuntimeError):
    """Stands for a step that did not run because an earlier one had failed."""


class UniprocExecutor(Executor):
    """Runs every step to its end at `launch`; `collect` hands out what came of it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._results: deque[ModelRunnerOutput | Exception] = deque()

    def kv_specs(self) -> list[KVCacheSpec]:
        return self._worker.kv_specs()

    def available_memory(self) -> int:
        return self._worker.available_memory()

    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None:
        self._worker.initialize(groups, num_blocks, max_model_len)

    def launch(self, step: SchedulerOutput) -> None:
        if self._has_uncollected_failure:
            self._results.append(_NotRunError("an earlier step failed"))
            return
        try:
            self._results.append(self._worker.execute(step))
        except Exception as error:  # kept for `collect`, whose step it belongs to
            self._results.append(error)
        except BaseException as interrupt:
            self._results.append(RuntimeError(f"interrupted by {type(interrupt).__name__}"))
            raise

    @property
    def _has_uncollected_failure(self) -> bool:
        return any(isinstance(result, Exception) and not isinstance(result, _NotRunError) for result in self._results)

    def collect(self) -> ModelRunnerOutput:
        result = self._results.popleft()
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None:
        self._results.clear()
        self._worker.shutdown()
