"""The way from the front end to the engine core."""

from abc import ABC, abstractmethod
from collections.abc import Collection

from pelton.core.messages import EngineCoreOutputs, EngineCoreRequest
from pelton.engine.engine_core import EngineCore


class EngineCoreClient(ABC):
    """Takes requests to an engine core, wherever it runs, and brings back outputs."""

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request. Raises ValueError if the core refuses it."""

    @abstractmethod
    def abort_requests(self, request_ids: Collection[str]) -> None:
        """End requests; ids that are unknown or finished are ignored."""

    @abstractmethod
    def get_outputs(self) -> EngineCoreOutputs:
        """The outputs of the next step."""

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether outputs are still to come."""

    @abstractmethod
    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the core and release its memory."""


class InprocClient(EngineCoreClient):
    """The core runs in this process, a step for every `get_outputs`."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

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
