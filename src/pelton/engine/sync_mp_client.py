"""For a caller that waits: one engine core in a process of its own."""

from collections import deque
from collections.abc import Collection

import zmq

from pelton.config import EngineArgs
from pelton.core.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from pelton.engine.core_client import SyncEngineCoreClient
from pelton.engine.core_connections import CoreConnections
from pelton.engine.supervisor import Supervisor
from pelton.engine.topology import Topology


class SyncMPClient(SyncEngineCoreClient):
    """Starts the core's process, and a thread that watches it."""

    def __init__(self, args: EngineArgs, *, progress: bool = False) -> None:
        topology = Topology()
        self._supervisor = Supervisor(args, topology, progress=progress)
        self._connections = CoreConnections(self._supervisor.endpoints.front_end(0, topology))
        self._supervisor.start()
        self._num_calls = 0
        self._deferred: deque[EngineCoreOutputs] = deque()
        """Outputs that came while an answer was waited for."""

    def wait_until_ready(self) -> int:
        connections = self._connections
        while not connections.up:
            if (failure := connections.start_failure) is not None:
                raise ValueError(failure)
            self._wait()
            connections.take_ready()
            connections.take_notice()
        info = connections.up[0].info
        assert info is not None
        return info.max_model_len

    def add_request(self, request: EngineCoreRequest) -> None:
        if request.request_id in self._connections.in_flight:
            raise ValueError(f"request_id {request.request_id!r} is in use by a request that has not finished")
        if not self._connections.in_flight:
            self._take_news()
        if not self._connections.up:
            self._wait_for_restart()
        self._connections.send_requests([request], 0)

    def abort_requests(self, request_ids: Collection[str]) -> None:
        self._connections.send_abort(request_ids)

    def get_outputs(self) -> EngineCoreOutputs:
        """Waits for them. The requests of a core that has ended come back with an error."""
        if self._deferred:
            return self._deferred.popleft()
        return self._next_outputs()

    def _next_outputs(self) -> EngineCoreOutputs:
        while True:
            for take in (self._connections.take_outputs, self._connections.take_notice, self._connections.take_ready):
                if (outputs := take()) is not None:
                    return outputs
            self._wait()

    @property
    def has_work(self) -> bool:
        return bool(self._connections.in_flight)

    def reset_prefix_cache(self) -> None:
        if not self._connections.up:
            self._wait_for_restart()
        self._num_calls += 1
        self._connections.send_utility(0, UtilityCall(self._num_calls, "reset_prefix_cache"))
        while True:
            outputs = self._next_outputs()
            if outputs.outputs:
                self._deferred.append(outputs)
            if any(result.call_id == self._num_calls for result in outputs.utility_results):
                return
            if not self._connections.up:
                return  # a core that has ended has no cached prefix

    def shutdown(self) -> None:
        self._supervisor.stop()
        self._supervisor.join()
        self._connections.close()

    def _take_news(self) -> None:
        """Of cores that ended while nobody waited for them: a request must not fail with those before it."""
        while self._connections.take_notice() or self._connections.take_ready():
            pass

    def _wait_for_restart(self) -> None:
        try:
            self.wait_until_ready()
        except ValueError as error:
            raise RuntimeError(f"{error}; make a new LLM") from None

    def _wait(self) -> None:
        poller = zmq.Poller()
        for socket in (self._connections.input, self._connections.output, self._connections.control):
            poller.register(socket, zmq.POLLIN)
        poller.poll()
