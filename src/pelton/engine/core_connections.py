"""A front end's sockets, and what it knows of the engine cores behind them."""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from logging import getLogger
from time import monotonic
from typing import Any, TypeVar

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
from pelton.engine.core_sockets import MessageKind, keep_alive, routing_id
from pelton.engine.errors import SEND_AGAIN

logger = getLogger(__name__)

UNREACHABLE = f"the engine core cannot be reached{SEND_AGAIN}"
_T = TypeVar("_T")

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
        "down_epoch",
        "epoch",
        "failure",
        "heard_at",
        "info",
        "is_final",
        "num_in_flight",
        "num_received",
        "num_sent",
        "rank",
        "stats",
        "was_ready",
    )

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.epoch = -1
        self.down_epoch = -1
        """The last one that is known to have ended."""
        self.info: CoreInfo | None = None
        """Of a core that takes requests."""
        self.is_final = False
        """It has ended for good."""
        self.was_ready = False
        """Whether it, or one before it, ever took requests."""
        self.failure = ""
        self.stats = IDLE
        self.num_sent = 0
        """Requests of this front end, finished ones too."""
        self.num_received = 0
        """How many of these the stats count."""
        self.num_in_flight = 0
        """Those that have not finished."""
        self.heard_at = 0.0
        """When it last said something, or got work after having none; seconds of the monotonic clock."""

    def forget(self) -> None:
        """The core is another one from now on."""
        self.stats, self.num_sent, self.num_received = IDLE, 0, 0

    def num_queued(self, num_more: int = 0) -> int:
        """Requests that wait for a place in a step, as far as is known, if so many more come."""
        num_new = self.num_sent - self.num_received + num_more
        waiting, running = self.stats.num_waiting, self.stats.num_running
        if waiting or self.info is None:
            return waiting + num_new
        return max(0, running + num_new - self.info.max_num_seqs)


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
            made.setsockopt(zmq.ROUTER_MANDATORY, 1)
        for address in addresses:
            keep_alive(made, address)
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

    def send_requests(self, requests: Sequence[EngineCoreRequest], rank: int) -> EngineCoreOutputs | None:
        """All choices of a user's request. Returns their errors if the core cannot be reached."""
        core = self.cores[rank]
        if not core.num_in_flight:
            core.heard_at = monotonic()
        core.num_in_flight += len(requests)
        core.num_sent += len(requests)
        for request in requests:
            self.in_flight[request.request_id] = core
        if self._send(rank, MessageKind.ADD, requests):
            return None
        core.num_sent -= len(requests)
        return self._failed([request.request_id for request in requests], core, UNREACHABLE)

    def send_abort(self, request_ids: Collection[str], rank: int | None = None) -> None:
        """`rank`: the core that has those which are not known here."""
        by_rank: dict[int, list[str]] = {}
        for request_id in request_ids:
            core = self._let_go(request_id)
            where = rank if core is None else core.rank
            if where is not None:
                by_rank.setdefault(where, []).append(request_id)
        for where, own in by_rank.items():
            self._send(where, MessageKind.ABORT, own)

    def send_utility(self, rank: int, call: UtilityCall) -> bool:
        """Returns whether the core can be reached."""
        return self._send(rank, MessageKind.UTILITY, call)

    def _send(self, rank: int, kind: MessageKind, payload: Any) -> bool:
        """Returns whether the core can be reached. One that dies with the message in its pipe is told of as down."""
        if self._is_half_sent:
            # An interrupt fell between the frames of a message. It has to end, or this one becomes a part of it.
            self.input.send(b"")
        frames = [routing_id(rank), kind.value, self._encode(payload)]
        self._is_half_sent = True
        try:
            self.input.send_multipart(frames)
        except zmq.ZMQError as error:
            self._is_half_sent = False
            if error.errno != errno.EHOSTUNREACH:
                raise
            return False
        self._is_half_sent = False
        return True

    def send_control(self, message: ToSupervisor) -> None:
        self.control.send(self._encode(message))

    # From the cores

    def take_outputs(self) -> EngineCoreOutputs | None:
        """The next outputs of any core, if there are some."""
        for payload in _messages(self.output):
            outputs = _decoded(self._decode_outputs, payload)
            if outputs is None or outputs.rank >= len(self.cores):
                continue
            core = self.cores[outputs.rank]
            core.heard_at = monotonic()
            core.stats, core.num_received = outputs.stats, outputs.num_received
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    self._let_go(output.request_id)
            return outputs
        return None

    def take_ready(self) -> EngineCoreOutputs | None:
        """Notice cores that have become ready; the errors of requests that were with those before them."""
        for payload in _messages(self.input):
            ready = _decoded(self._decode_ready, payload)
            if ready is None or ready.rank >= len(self.cores):
                continue
            core = self.cores[ready.rank]
            if ready.epoch < core.epoch or ready.epoch <= core.down_epoch:
                continue  # it has ended since
            is_another = core.info is not None and ready.epoch > core.epoch
            core.epoch, core.info, core.is_final, core.was_ready = ready.epoch, ready.info, False, True
            if is_another:
                return self._fail(core, f"the engine core ended unexpectedly{SEND_AGAIN}")
        return None

    def take_notice(self) -> EngineCoreOutputs | None:
        """Handle the supervisor's notices; the errors of requests whose core is gone."""
        for payload in _messages(self.control):
            notice = _decoded(self._decode_notice, payload)
            match notice:
                case CoreDown() if notice.rank < len(self.cores):
                    core = self.cores[notice.rank]
                    core.down_epoch = max(core.down_epoch, notice.epoch)
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
        return None

    def _fail(self, core: CoreState, message: str) -> EngineCoreOutputs:
        """Outputs that end all requests of a core, which is gone, with an error."""
        core.forget()
        return self._failed([i for i, where in self.in_flight.items() if where is core], core, message)

    def _failed(self, request_ids: Sequence[str], core: CoreState, message: str) -> EngineCoreOutputs:
        for request_id in request_ids:
            self._let_go(request_id)
        outputs = [EngineCoreOutput(request_id, [], "error", message) for request_id in request_ids]
        return EngineCoreOutputs(outputs, core.stats, core.rank)

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


def _messages(socket: "zmq.Socket[bytes]") -> Iterator[bytes]:
    """The last frame of each message that is there."""
    while True:
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)[-1]
        except zmq.Again:
            return


def _decoded(decode: Callable[[bytes], _T], payload: bytes) -> _T | None:
    try:
        return decode(payload)
    except (ValueError, RecursionError) as error:  # msgspec's are such: the latter for deeply nested data
        logger.error("dropped a message that cannot be read: %s", error)
        return None


def report_start_failure(addresses: FrontEndAddresses, message: str) -> None:
    """Tell the supervisor why this front end, which is a process, ends before it has served."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    control = context.socket(zmq.DEALER)
    control.connect(addresses.control)
    control.send(msgspec.msgpack.encode(FrontEndFailed(addresses.index, message)))
    context.destroy(linger=5000)
