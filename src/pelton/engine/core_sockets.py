"""The sockets of an engine core's process, each end in a thread of its own.

Front end to core: frames of a kind and its payload. Core to front end: one frame, an `EngineCoreOutputs`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from logging import getLogger
from queue import SimpleQueue
from threading import Thread
from typing import Any

import msgspec
import zmq

from pelton.core.control_messages import Addresses, FromSupervisor, FrontEndLost, Shutdown
from pelton.core.dp_messages import StartWave
from pelton.core.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall

logger = getLogger(__name__)

_HEARTBEAT_MS = 10_000


class MessageKind(Enum):
    """First frame of what a front end sends; its value is the frame."""

    ADD = b"A"
    """All choices of a user's request: a list of `EngineCoreRequest`."""
    ABORT = b"X"
    """A list of request ids."""
    UTILITY = b"U"
    """A `UtilityCall`."""


PAYLOADS: dict[MessageKind, Any] = {
    MessageKind.ADD: list[EngineCoreRequest],
    MessageKind.ABORT: list[str],
    MessageKind.UTILITY: UtilityCall,
}


@dataclass(frozen=True, slots=True)
class Received:
    """What a front end sent."""

    front_end: int
    payload: list[EngineCoreRequest] | list[str] | UtilityCall
    kind: MessageKind


Message = Received | StartWave | FrontEndLost | Shutdown


def routing_id(rank: int) -> bytes:
    """What front ends' routers know a core by."""
    return rank.to_bytes(2, "little")


def keep_alive(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Before a socket is bound or connected: between machines, firewalls forget connections that are silent, and
    only who sends notices that a peer is gone."""
    if address.startswith("tcp:"):
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)


class CoreInput:
    """Takes messages off the sockets, decodes them and puts them into `inbox`."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", rank: int, addresses: Addresses, control: "zmq.Socket[bytes]"
    ) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self._control = control
        self._hello = b""
        self._front_ends = []
        for address in addresses.front_end_inputs:
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, routing_id(rank))
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 0)
            keep_alive(socket, address)
            socket.connect(address)
            self._front_ends.append(socket)
        self._waves: zmq.Socket[bytes] | None = None
        if addresses.coordinator_waves is not None:
            self._waves = context.socket(zmq.SUB)
            self._waves.setsockopt(zmq.LINGER, 0)
            self._waves.subscribe(b"")
            self._waves.connect(addresses.coordinator_waves)
        self._decoders = {kind: msgspec.msgpack.Decoder(payload) for kind, payload in PAYLOADS.items()}
        self._control_decoder = msgspec.msgpack.Decoder(FromSupervisor)
        self._wave_decoder = msgspec.msgpack.Decoder(StartWave)

    def start(self, hello: bytes) -> None:
        """Tell every front end, with `hello`, that the core is ready, and take messages from now on."""
        self._hello = hello
        for socket in self._front_ends:
            socket.send(hello)
        Thread(target=self._run, name="pelton-core-input", daemon=True).start()

    def _run(self) -> None:
        poller = zmq.Poller()
        sockets = [*self._front_ends, self._control, *([self._waves] if self._waves is not None else [])]
        for socket in sockets:
            poller.register(socket, zmq.POLLIN)
        with _or_end():
            while True:
                for socket, _ in poller.poll():
                    self._take(socket)

    def _take(self, socket: "zmq.Socket[bytes]") -> None:
        """Put the next message of a socket that has one into the inbox."""
        frames = socket.recv_multipart()
        try:
            message = self._decoded(socket, frames)
        except (ValueError, IndexError, RecursionError) as error:  # the last: deeply nested data
            logger.error("dropped a message that cannot be read: %s", error)
            return
        if isinstance(message, FrontEndLost):
            lost = self._front_ends[message.index]
            while lost.poll(0):
                self._take(lost)  # what it asked for before its end must not outlive it
            lost.send(self._hello)  # whoever takes its place must hear of this core
        if message is not None:
            self.inbox.put(message)

    def _decoded(self, socket: "zmq.Socket[bytes]", frames: list[bytes]) -> Message | None:
        if socket is self._waves:
            return self._wave_decoder.decode(frames[0])
        if socket is self._control:
            notice = self._control_decoder.decode(frames[0])
            return notice if isinstance(notice, FrontEndLost | Shutdown) else None
        if not frames[-1]:
            return None  # the front end was interrupted while it sent
        kind = MessageKind(frames[0])
        return Received(self._front_ends.index(socket), self._decoders[kind].decode(frames[1]), kind)


class CoreOutput:
    """Encodes outputs and sends them, while the next step runs."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", addresses: Sequence[str]) -> None:
        self._outbox: SimpleQueue[tuple[int, EngineCoreOutputs]] = SimpleQueue()
        self._sockets = []
        for address in addresses:
            socket = context.socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 0)
            # A front end that does not take its outputs holds up nobody; its requests bound what piles up.
            socket.setsockopt(zmq.SNDHWM, 0)
            keep_alive(socket, address)
            socket.connect(address)
            self._sockets.append(socket)
        Thread(target=self._run, name="pelton-core-output", daemon=True).start()

    def put(self, front_end: int, outputs: EngineCoreOutputs) -> None:
        self._outbox.put((front_end, outputs))

    def _run(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        with _or_end():
            while True:
                front_end, outputs = self._outbox.get()
                self._sockets[front_end].send(encoder.encode(outputs))


@contextmanager
def _or_end() -> Iterator[None]:
    """A core that is deaf or mute is worse than none, which is started again."""
    try:
        yield
    except BaseException:
        logger.exception("the engine core cannot go on")
        os._exit(1)
