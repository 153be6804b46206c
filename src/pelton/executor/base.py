"""What the engine core asks of whoever runs the model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pelton.core.kv_spec import KVCacheGroup, KVCacheSpec
from pelton.core.messages import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Runs steps on its workers, in the order they are launched.

    A step that fails changes nothing that later steps may build on, so steps launched before its failure has been
    collected do not run: their `collect` raises too.
    """

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

    @abstractmethod
    def shutdown(self) -> None:
        """Release workers and memory. Nothing may be called afterwards."""
