"""A front end's sockets, and what it knows of the engine cores behind them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from logging import getLogger
from time import monotonic
from typing import Any

import msgspec
import zmq

from pelton.core.control_messages import (
    CoordinatorLost,
    CoreDown,
    CoreInfo,
    CoreReady,
    FromSupervisor,
    FrontEndFailed,
    FrontEndHello,
    MetricsCall,
    MetricsReply,
    MetricsState,
    Shutdown,
    ToSupervisor,
)
from pelton.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineStats, UtilityCall
from pelton.engine.core_sockets import MessageKind, routing_id

logger = getLogger(__name__)

IDLE = EngineStats(0, 0, 0, 0.0, 0, 0, 0, 0)
"""The state of a core that has not told any."""


@dataclass(frozen=True, slots=True)
class FrontEndAddresses:
    """Where one front end binds and connects."""

    index: int
    inputs: list[str]
    outputs: list[str]
    control: str
    published: str | None
    """The coordinator's publications."""
    num_ranks: int
    num_front_ends: int


class CoreState:
    """What a front end knows of one core."""

    __slots__ = (
        "epoch",
        "failure",
        "heard_at",
        "info",
        "is_final",
        "num_added",
        "num_in_flight",
        "rank",
        "stats",
        "was_ready",
    )

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.epoch = -1
        self.info: CoreInfo | None = None
        """Of a core that takes requests."""
        self.is_final = False
        """It has ended for good."""
        self.was_ready = False
        """Whether it, or one before it, ever took requests."""
        self.failure = ""
        self.stats = IDLE
        self.num_added = 0
        """Requests sent since the stats."""
        self.num_in_flight = 0
        """Requests of this front end."""
        self.heard_at = 0.0
        """When it last said something, or got work after having none; seconds of the monotonic clock."""

    def num_queued(self, num_more: int = 0) -> int:
        """Requests that wait for a place in a step, as far as is known, if so many more come."""
        waiting, running = self.stats.num_waiting, self.stats.num_running
        if waiting or self.info is None:
            return waiting + self.num_added + num_more
        return max(0, running + self.num_added + num_more - self.info.max_num_seqs)


class CoreConnections:
    """Sends requests to cores, and decodes what comes from them. For one thread; whoever owns it waits."""

    def __init__(self, addresses: FrontEndAddresses) -> None:
        """Raises ValueError if an address cannot be bound."""
        self.addresses = addresses
        self.cores = [CoreState(rank) for rank in range(addresses.num_ranks)]
        self.in_flight: dict[str, CoreState] = {}
        """Requests (choices) that have not finished."""
        self.on_metrics_call: Callable[[], list[MetricsState]] = list
        """What to answer when figures are collected."""
        self.on_metrics_reply: Callable[[MetricsReply], None] = lambda _: None
        self.on_finished: Callable[[int], None] = lambda _: None
        """Called with the rank of each request that is in flight no more."""
        self.on_shutdown: Callable[[], None] = lambda: None
        self.on_coordinator_lost: Callable[[], None] = lambda: None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.input = self._bound(zmq.ROUTER, addresses.inputs)
        self.output = self._bound(zmq.PULL, addresses.outputs)
        self.control = self._context.socket(zmq.DEALER)
        self.control.setsockopt(zmq.LINGER, 0)
        self.control.connect(addresses.control)
        self._is_half_sent = False
        """The last message may lack its end."""
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode_outputs = msgspec.msgpack.Decoder(EngineCoreOutputs).decode
        self._decode_ready = msgspec.msgpack.Decoder(CoreReady).decode
        self._decode_notice = msgspec.msgpack.Decoder(FromSupervisor).decode
        self.send_control(FrontEndHello(addresses.index))

    def _bound(self, kind: int, addresses: Iterable[str]) -> "zmq.Socket[bytes]":
        made = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.SNDHWM, 0)
        made.setsockopt(zmq.RCVHWM, 0)
        if kind == zmq.ROUTER:
            # A core that is started again has the name of the one before.
            made.setsockopt(zmq.ROUTER_HANDOVER, 1)
        for address in addresses:
            try:
                made.bind(address)
            except zmq.ZMQError as error:
                self._context.destroy(linger=0)
                raise ValueError(f"an address for the engine cores cannot be bound: {error}") from None
        return made

    def subscribed(self, address: str) -> "zmq.Socket[bytes]":
        """A socket for the newest of what is published there."""
        made = self._context.socket(zmq.SUB)
        made.setsockopt(zmq.CONFLATE, 1)
        made.setsockopt(zmq.LINGER, 0)
        made.subscribe(b"")
        made.connect(address)
        return made

    def close(self) -> None:
        self._context.destroy(linger=0)

    # To the cores

    def send_requests(self, requests: Sequence[EngineCoreRequest], rank: int) -> None:
        """All choices of a user's request."""
        core = self.cores[rank]
        if not core.num_in_flight:
            core.heard_at = monotonic()
        core.num_in_flight += len(requests)
        core.num_added += len(requests)
        for request in requests:
            self.in_flight[request.request_id] = core
        self._send(rank, MessageKind.ADD, requests)

    def send_abort(self, request_ids: Collection[str]) -> None:
        by_rank: dict[int, list[str]] = {}
        for request_id in request_ids:
            core = self._let_go(request_id)
            if core is not None:
                by_rank.setdefault(core.rank, []).append(request_id)
        for rank, own in by_rank.items():
            self._send(rank, MessageKind.ABORT, own)

    def send_utility(self, rank: int, call: UtilityCall) -> None:
        self._send(rank, MessageKind.UTILITY, call)

    def _send(self, rank: int, kind: MessageKind, payload: Any) -> None:
        if self._is_half_sent:
            # An interrupt fell between the frames of a message. It has to end, or this one becomes a part of it.
            self.input.send(b"")
        frames = [routing_id(rank), kind.value, self._encode(payload)]
        self._is_half_sent = True
        # A core that is gone gets nothing: the router drops it, and the supervisor says so.
        self.input.send_multipart(frames)
        self._is_half_sent = False

    def send_control(self, message: ToSupervisor) -> None:
        self.control.send(self._encode(message))

    # From the cores

    def take_outputs(self) -> EngineCoreOutputs | None:
        """The next outputs of any core, if there are some."""
        try:
            payload = self.output.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        outputs = self._decode_outputs(payload)
        core = self.cores[outputs.rank]
        core.heard_at = monotonic()
        core.stats, core.num_added = outputs.stats, 0
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self._let_go(output.request_id)
        return outputs

    def take_ready(self) -> EngineCoreOutputs | None:
        """Notice cores that have become ready; the errors of requests that were with those before them."""
        failed = None
        while True:
            try:
                payload = self.input.recv_multipart(zmq.NOBLOCK)[-1]
            except zmq.Again:
                return failed
            ready = self._decode_ready(payload)
            core = self.cores[ready.rank]
            if core.info is not None and ready.epoch > core.epoch:
                failed = self._fail(core, "the engine core ended unexpectedly; please send the request again")
            core.epoch, core.info = ready.epoch, ready.info
            core.stats, core.num_added, core.is_final, core.was_ready = IDLE, 0, False, True
            if failed is not None:
                return failed

    def take_notice(self) -> EngineCoreOutputs | None:
        """Handle the supervisor's notices; the errors of requests whose core is gone."""
        while True:
            try:
                payload = self.control.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            notice = self._decode_notice(payload)
            match notice:
                case CoreDown():
                    core = self.cores[notice.rank]
                    if notice.epoch < core.epoch:
                        continue
                    core.info, core.is_final, core.failure = None, notice.is_final, notice.reason
                    core.was_ready = notice.was_ready
                    return self._fail(core, notice.reason)
                case CoordinatorLost():
                    self.on_coordinator_lost()
                case MetricsCall():
                    self.send_control(MetricsReply(notice.call_id, self.on_metrics_call()))
                case MetricsReply():
                    self.on_metrics_reply(notice)
                case Shutdown():
                    self.on_shutdown()

    def _fail(self, core: CoreState, message: str) -> EngineCoreOutputs:
        """Outputs that end all requests of a core with an error."""
        request_ids = [request_id for request_id, where in self.in_flight.items() if where is core]
        for request_id in request_ids:
            self._let_go(request_id)
        core.stats, core.num_added = IDLE, 0
        outputs = [EngineCoreOutput(request_id, [], "error", message) for request_id in request_ids]
        return EngineCoreOutputs(outputs, IDLE, core.rank)

    def _let_go(self, request_id: str) -> CoreState | None:
        core = self.in_flight.pop(request_id, None)
        if core is not None:
            core.num_in_flight -= 1
            self.on_finished(core.rank)
        return core

    # What is known

    @property
    def up(self) -> list[CoreState]:
        """Cores that take requests."""
        return [core for core in self.cores if core.info is not None]

    def is_stalled(self, core: CoreState, seconds: float) -> bool:
        """Whether a core has work and has finished no step for so long."""
        return core.num_in_flight > 0 and monotonic() - core.heard_at > seconds

    @property
    def is_ready(self) -> bool:
        """Whether all cores take requests, but those that did so once and have ended for good."""
        return bool(self.up) and all(core.info or (core.is_final and core.was_ready) for core in self.cores)

    @property
    def start_failure(self) -> str | None:
        """Why that cannot be; None if it may."""
        is_over = all(core.is_final for core in self.cores)
        return next((core.failure for core in self.cores if core.is_final and (is_over or not core.was_ready)), None)


def report_start_failure(addresses: FrontEndAddresses, message: str) -> None:
    """Tell the supervisor why this front end, which is a process, ends before it has served."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    control = context.socket(zmq.DEALER)
    control.connect(addresses.control)
    control.send(msgspec.msgpack.encode(FrontEndFailed(addresses.index, message)))
    context.destroy(linger=5000)
