"""For an asyncio front end: engine cores in processes of their own, one or several."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from logging import getLogger
from typing import Any

import msgspec
import zmq

from pelton.core.control_messages import MetricsCall, MetricsReply, MetricsState
from pelton.core.dp_messages import LoadsPublished
from pelton.core.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall, UtilityResult
from pelton.engine.core_client import EngineCoreClient
from pelton.engine.core_connections import CoreConnections, CoreState
from pelton.engine.errors import EngineDeadError
from pelton.engine.load_balancer import LoadBalancer

logger = getLogger(__name__)

_CALL_SECONDS = 30.0
"""How long a core may take to answer a call: as long as a step with a long prompt."""


class AsyncMPClient(EngineCoreClient):
    """One engine core. Outputs are decoded when the event loop says that a socket has some."""

    def __init__(self, connections: CoreConnections, *, stall_timeout: float) -> None:
        """`stall_timeout`: seconds without a finished step after which a core with work counts as stalled. To be made
        in the event loop's thread."""
        self.connections = connections
        self._stall_timeout = stall_timeout
        self._arrived: deque[EngineCoreOutputs] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()
        """Set when a core has come or gone."""
        self._calls: dict[int, tuple[asyncio.Future[Any], int | None]] = {}
        """By id: the answer to come, and of which core, if it is one's."""
        self._num_calls = 0
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._readers: list[zmq.Socket[bytes]] = []
        connections.on_metrics_reply = self._on_metrics_reply
        self._read(connections.output, self._on_output)
        self._read(connections.input, self._on_ready)
        self._read(connections.control, self._on_notice)

    def _read(self, socket: "zmq.Socket[bytes]", callback: Callable[[], None]) -> None:
        def read() -> None:
            try:
                callback()
            except BaseException:
                # The file of a ZeroMQ socket tells changes, not states: what is left would not be told of again.
                self._loop.call_soon(read)
                raise

        self._loop.add_reader(socket.FD, read)
        self._readers.append(socket)
        callback()

    async def wait_until_ready(self) -> None:
        """Until all cores take requests, but those that have ended for good. Raises ValueError if one cannot start."""
        while not self.connections.is_ready:
            if (failure := self.connections.start_failure) is not None:
                raise ValueError(failure)
            self._changed.clear()
            await self._changed.wait()

    async def wait_until_up(self) -> None:
        """Until a core takes requests. Raises EngineDeadError if none will."""
        while not self.connections.up:
            if all(core.is_final for core in self.connections.cores):
                raise EngineDeadError("every engine core has ended for good; start again")
            self._changed.clear()
            await self._changed.wait()

    async def next_outputs(self) -> EngineCoreOutputs:
        """What comes next, of any core."""
        while not self._arrived:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._arrived.popleft()

    def choose_rank(self, num_requests: int, pinned: int | None = None) -> int:
        """The core for so many requests that belong together. `pinned`: the one that the user wants.

        Raises EngineDeadError if no core can take them, ValueError for a rank that there is not.
        """
        cores = self.connections.cores
        if pinned is not None:
            if not 0 <= pinned < len(cores):
                raise ValueError(f"data_parallel_rank must be in [0, {len(cores) - 1}], got {pinned}")
            if cores[pinned].info is None:
                raise EngineDeadError(f"the engine core of data_parallel_rank {pinned} is not there; try again later")
            return pinned
        able = self.connections.up
        if not able:
            raise EngineDeadError("no engine core can take the request at the moment; try again later")
        moving = [core for core in able if not self.connections.is_stalled(core, self._stall_timeout)]
        return self._choose(moving or able)

    def _choose(self, able: Sequence[CoreState]) -> int:
        return able[0].rank

    def add_request(self, request: EngineCoreRequest) -> None:
        self.add_requests([request], self.choose_rank(1))

    def add_requests(self, requests: Sequence[EngineCoreRequest], rank: int) -> None:
        """Hand over all choices of a user's request."""
        if (failed := self.connections.send_requests(requests, rank)) is not None:
            self._arrive(failed)
        self._on_ready()

    def abort_requests(self, request_ids: Collection[str], rank: int | None = None) -> None:
        """`rank`: the core that has those which this front end does not know."""
        if not self._is_closed:
            self.connections.send_abort(request_ids, rank)
            self._on_ready()

    @property
    def has_work(self) -> bool:
        return bool(self.connections.in_flight)

    @property
    def is_healthy(self) -> bool:
        """Whether a core takes requests, and none that has some is stalled."""
        up = self.connections.up
        return bool(up) and not any(self.connections.is_stalled(core, self._stall_timeout) for core in up)

    def num_queued(self, num_more: int) -> int:
        """Requests that wait for a place in a step, over all cores, once so many more have come; 0 if these need not
        wait."""
        up = self.connections.up
        before = sum(core.num_queued() for core in up)
        must_wait = min((core.num_queued(num_more) - core.num_queued() for core in up), default=0)
        return before + must_wait if must_wait else 0

    async def call_utility(self, name: str) -> dict[int, Any]:
        """Call a function of every core. Returns its values by rank.

        Raises ValueError for what a core says, EngineDeadError if one does not answer or there is none.
        """
        self._check_is_open()
        if not self.connections.up:
            raise EngineDeadError("there is no engine core at the moment; try again later")
        calls = {}
        for core in self.connections.up:
            call_id = calls[core.rank] = self._begin_call(core.rank)
            if not self.connections.send_utility(core.rank, UtilityCall(call_id, name)):
                self._fail_calls(core.rank)
        self._on_ready()
        try:
            answers = [self._answer(call_id, f"engine core {rank}") for rank, call_id in calls.items()]
            # All of them, so that an error of one leaves no other unread.
            values = await asyncio.gather(*answers, return_exceptions=True)
        finally:
            for call_id in calls.values():
                self._calls.pop(call_id, None)
        for value in values:
            if isinstance(value, BaseException):
                raise value
        return dict(zip(calls, values, strict=True))

    async def collect_metrics(self) -> list[MetricsState]:
        """The figures of all front ends."""
        self._check_is_open()
        if self.connections.addresses.num_front_ends == 1:
            return self.connections.on_metrics_call()
        call_id = self._begin_call()
        self.connections.send_control(MetricsCall(call_id))
        self._on_notice()
        states: list[MetricsState] = await self._answer(call_id, "the supervisor")
        return states

    def _check_is_open(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the server is shutting down")

    def _begin_call(self, rank: int | None = None) -> int:
        self._num_calls += 1
        self._calls[self._num_calls] = (self._loop.create_future(), rank)
        return self._num_calls

    async def _answer(self, call_id: int, whose: str) -> Any:
        try:
            return await asyncio.wait_for(self._calls[call_id][0], _CALL_SECONDS)
        except TimeoutError:
            raise EngineDeadError(f"{whose} does not answer; try again later") from None
        finally:
            self._calls.pop(call_id, None)

    def shutdown(self) -> None:
        """Closes the sockets; the supervisor ends the cores."""
        self._is_closed = True
        for socket in self._readers:
            self._loop.remove_reader(socket.FD)
        self.connections.close()

    def _on_output(self) -> None:
        while (outputs := self.connections.take_outputs()) is not None:
            if outputs.utility_results:
                self._resolve(outputs.utility_results)
            self._arrive(outputs)

    def _on_ready(self) -> None:
        while (outputs := self.connections.take_ready()) is not None:
            self._arrive(outputs)
            self._fail_calls(outputs.rank)
        self._changed.set()

    def _on_notice(self) -> None:
        while (outputs := self.connections.take_notice()) is not None:
            self._arrive(outputs)
            self._fail_calls(outputs.rank)
            self._changed.set()

    def _arrive(self, outputs: EngineCoreOutputs) -> None:
        self._arrived.append(outputs)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resolve(self, results: Iterable[UtilityResult]) -> None:
        for result in results:
            future, _ = self._calls.get(result.call_id, (None, None))
            if future is None or future.done():
                continue
            if result.error is None:
                future.set_result(result.value)
            else:
                future.set_exception(ValueError(result.error))

    def _fail_calls(self, rank: int) -> None:
        """Calls of a core that is gone get no answer."""
        for future, called in self._calls.values():
            if called == rank and not future.done():
                future.set_exception(EngineDeadError(f"engine core {rank} has ended; try again later"))

    def _on_metrics_reply(self, reply: MetricsReply) -> None:
        future, _ = self._calls.get(reply.call_id, (None, None))
        if future is not None and not future.done():
            future.set_result(reply.states)


class DPLBAsyncMPClient(AsyncMPClient):
    """Several data-parallel engine cores: a request goes to the one with the least to do, as the coordinator tells."""

    def __init__(self, connections: CoreConnections, *, stall_timeout: float) -> None:
        self._balancer = LoadBalancer(len(connections.cores))
        connections.on_finished = self._balancer.finished
        connections.on_coordinator_lost = self._balancer.coordinator_lost
        super().__init__(connections, stall_timeout=stall_timeout)
        assert connections.addresses.published is not None, "several cores have a coordinator"
        self._published = connections.subscribed(connections.addresses.published)
        self._decode_loads = msgspec.msgpack.Decoder(LoadsPublished).decode
        self._read(self._published, self._on_published)

    def _choose(self, able: Sequence[CoreState]) -> int:
        return self._balancer.choose([core.rank for core in able])

    def add_requests(self, requests: Sequence[EngineCoreRequest], rank: int) -> None:
        for _ in requests:
            self._balancer.sent(rank)
        super().add_requests(requests, rank)

    def _on_published(self) -> None:
        while True:
            try:
                self._balancer.published(self._decode_loads(self._published.recv(zmq.NOBLOCK)).loads)
            except zmq.Again:
                return
            except (ValueError, RecursionError) as error:
                logger.error("dropped a publication that cannot be read: %s", error)
