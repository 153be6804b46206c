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
        self._description = ""
        self._num_calls = 0
        self._answered: set[int] = set()
        """Ids of calls that the core has answered."""
        self._arrived: deque[EngineCoreOutputs] = deque()

    def wait_until_ready(self) -> int:
        connections = self._connections
        self._take_all()
        while not connections.up:
            if (failure := connections.start_failure) is not None:
                raise ValueError(failure)
            self._wait()
            self._take_all()
        info = connections.up[0].info
        assert info is not None
        self._description = info.description
        return info.max_model_len

    @property
    def description(self) -> str:
        return self._description

    def add_request(self, request: EngineCoreRequest) -> None:
        if request.request_id in self._connections.in_flight:
            raise ValueError(f"request_id {request.request_id!r} is in use by a request that has not finished")
        self._take_all()  # a core may have ended while nobody waited for it
        if not self._connections.up:
            self._wait_for_restart()
        if (failed := self._connections.send_requests([request], 0)) is not None:
            self._arrived.append(failed)

    def abort_requests(self, request_ids: Collection[str]) -> None:
        self._connections.send_abort(request_ids, 0)

    def get_outputs(self) -> EngineCoreOutputs:
        """Waits for them. The requests of a core that has ended come back with an error."""
        while not self._arrived:
            self._take_all()
            if not self._arrived:
                self._wait()
        return self._arrived.popleft()

    @property
    def has_work(self) -> bool:
        return bool(self._arrived) or bool(self._connections.in_flight)

    def reset_prefix_cache(self) -> None:
        self._take_all()
        if not self._connections.up:
            self._wait_for_restart()
        self._num_calls += 1
        is_sent = self._connections.send_utility(0, UtilityCall(self._num_calls, "reset_prefix_cache"))
        # A core that has ended has no cached prefix.
        while is_sent and self._connections.up and self._num_calls not in self._answered:
            self._wait()
            self._take_all()

    def shutdown(self) -> None:
        self._supervisor.stop()
        self._supervisor.join()
        self._connections.close()

    def _take_all(self) -> None:
        """All that has come. Outputs are kept for `get_outputs`."""
        connections = self._connections
        for take in (connections.take_outputs, connections.take_notice, connections.take_ready):
            while (outputs := take()) is not None:
                self._answered.update(result.call_id for result in outputs.utility_results)
                self._arrived.append(outputs)

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
