"""The way from the front end to the engine core."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from pelton.core.messages import EngineCoreOutputs, EngineCoreRequest
from pelton.engine.engine_core import EngineCore


class EngineCoreClient(ABC):
    """Takes requests to engine cores, wherever they run."""

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request.

        Raises ValueError if the core refuses it; a core in another process says so later, in an output with an error.
        """

    @abstractmethod
    def abort_requests(self, request_ids: Collection[str]) -> None:
        """End requests; ids that are unknown or finished are ignored."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether outputs are still to come."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the cores and release their memory."""


class SyncEngineCoreClient(EngineCoreClient):
    """Brings outputs back to a caller that waits for them."""

    @abstractmethod
    def wait_until_ready(self) -> int:
        """Wait until the core takes requests. Returns the longest request that it holds, in tokens.

        Raises ValueError if it cannot start.
        """

    @property
    @abstractmethod
    def description(self) -> str:
        """Kernels, weights and threads of the core, once it is ready; for people."""

    @abstractmethod
    def get_outputs(self) -> EngineCoreOutputs:
        """The outputs of the next step."""

    @abstractmethod
    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""


class InprocClient(SyncEngineCoreClient):
    """The core runs in this process, a step for every `get_outputs`."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def wait_until_ready(self) -> int:
        return self._core.max_model_len

    @property
    def description(self) -> str:
        return self._core.description

    def add_request(self, request: EngineCoreRequest) -> None:
        self._core.add_request(request)

    def abort_requests(self, request_ids: Collection[str]) -> None:
        self._core.abort_requests(request_ids)

    def get_outputs(self) -> EngineCoreOutputs:
        return self._core.step()

    @property
    def has_work(self) -> bool:
        return self._core.has_work

    def reset_prefix_cache(self) -> None:
        self._core.reset_prefix_cache()

    def shutdown(self) -> None:
        self._core.shutdown()
