"""The supervisor's end of the control sockets."""

from collections.abc import Iterator
from logging import getLogger

import msgspec
import zmq

from pelton.core.control_messages import FromSupervisor, ToSupervisor
from pelton.engine.topology import Endpoints, Topology

logger = getLogger(__name__)

_MAX_MESSAGE_SIZE = 1 << 26
"""Bytes; the longest messages are figures, a few thousand per engine core. Whoever sends more is disconnected."""


class ControlSocket:
    """Knows others by the identities of their sockets."""

    def __init__(self, endpoints: Endpoints, topology: Topology) -> None:
        """Raises ValueError if an address cannot be bound."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A node whose connection was lost comes back under its name.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_SIZE)
        self._decoder = msgspec.msgpack.Decoder(ToSupervisor)
        self._bind(
            endpoints.control,
            f"{endpoints.control} is an address for the engine's processes, which cannot be bound",
            "set TMPDIR to another folder",
        )
        if endpoints.remote_control is not None:
            self._bind(
                endpoints.remote_control,
                f"data_parallel_rpc_port is {topology.rpc_port}, which cannot be bound at {topology.address}",
                "choose another one",
            )

    def _bind(self, address: str, problem: str, remedy: str) -> None:
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ValueError(f"{problem} ({error.strerror}); {remedy}") from None

    def messages(self) -> Iterator[tuple[bytes, ToSupervisor]]:
        """All that are there, and who sent them."""
        while self.socket.poll(0):
            identity, payload = self.socket.recv_multipart()[:2]
            try:
                message = self._decoder.decode(payload)
            except (ValueError, RecursionError) as error:  # the latter for deeply nested data
                logger.error("dropped a message that cannot be read: %s", error)
                continue
            yield identity, message

    def send(self, identity: bytes, message: FromSupervisor) -> bool:
        """Whether there is a connection to it."""
        try:
            self.socket.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """What was sent is delivered, if that takes no longer than a second."""
        self._context.destroy(linger=1000)
