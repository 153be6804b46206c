"""What the engine core asks of whoever runs the model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from pelton.core.kv_spec import KVCacheGroup, KVCacheSpec
from pelton.core.messages import ModelRunnerOutput, SchedulerOutput


class Worker(Protocol):
    """What an executor drives."""

    def describe(self) -> str: ...

    def kv_specs(self) -> list[KVCacheSpec]: ...

    def available_memory(self) -> int: ...

    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None: ...

    def execute(self, step: SchedulerOutput) -> ModelRunnerOutput: ...

    def shutdown(self) -> None: ...


class Executor(ABC):
    """Runs steps on its workers, in the order they are launched.

    A step that fails changes nothing that later steps may build on, so steps launched before its failure has been
    collected do not run: their `collect` raises too.

    Classes that `distributed_executor_backend` names are made with two arguments, the `EngineArgs` and the opened
    `Checkpoint`, and have the model loaded afterwards.
    """

    needs_lockstep: ClassVar[bool] = False
    """Whether a step waits for a step of every other data-parallel rank, so that ranks without requests must run
    `execute_dummy` as long as any rank has some."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.needs_lockstep and cls.execute_dummy is Executor.execute_dummy:
            raise TypeError(f"{cls.__name__} needs lockstep, so it must have an execute_dummy of its own")

    def describe(self) -> str:
        """Kernels, formats and threads on one line, for the summary at the start."""
        return type(self).__name__

    @abstractmethod
    def kv_specs(self) -> list[KVCacheSpec]:
        """One spec per attention layer of the loaded model."""

    @abstractmethod
    def available_memory(self) -> int:
        """Bytes that the workers can still take, the model being loaded."""

    @abstractmethod
    def initialize(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> None:
        """Allocate the KV cache and get ready for steps."""

    @abstractmethod
    def launch(self, step: SchedulerOutput) -> None:
        """Start a step. Its errors are raised by the `collect` that belongs to it."""

    @abstractmethod
    def collect(self, step_id: int) -> ModelRunnerOutput:
        """Wait for a step and return its results. Steps are collected in the order of their launch.

        Raises what the step raised, or RuntimeError if it did not run to its end.
        """

    def execute_dummy(self) -> None:  # noqa: B027
        """Run a step without requests to its end; called only where ranks need lockstep, with no step in flight.

        Raises what the step raised.
        """

    @abstractmethod
    def shutdown(self) -> None:
        """Release workers and memory. Nothing may be called afterwards."""
