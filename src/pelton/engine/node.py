"""Engine cores of a further node, which belong to the front ends of the first: `pelton serve --headless`."""

import os
import signal
from logging import getLogger
from time import monotonic
from types import FrameType
from typing import Any

import msgspec
import zmq

from pelton.config import EngineArgs
from pelton.core.control_messages import (
    FromSupervisor,
    NodeAlive,
    NodeCoreDied,
    NodeHello,
    NodeRefused,
    NodeWelcome,
    Shutdown,
    ToSupervisor,
)
from pelton.engine.core_processes import CoreProcesses
from pelton.engine.node_registry import NODE_SILENCE
from pelton.engine.topology import Topology, private_folder

logger = getLogger(__name__)

_BEAT = 2000
"""Milliseconds between two signs of life."""


class Node:
    """Starts the ranks of this machine, and keeps the first node informed of them."""

    def __init__(self, args: EngineArgs, topology: Topology) -> None:
        """`topology.address`: of the first node."""
        self._args = args.to_plain()
        self._topology = topology
        self._address = f"tcp://{topology.address}:{topology.rpc_port}"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = self._context.socket(zmq.DEALER)
        self._control.setsockopt(zmq.LINGER, 1000)
        # The first node knows this one by it, also after the connection was made anew.
        self._control.setsockopt(zmq.IDENTITY, b"node-" + os.urandom(8))
        self._control.connect(self._address)
        self._wake_read, self._wake_write = os.pipe()
        self._epochs: dict[int, int] = {}
        self._is_stopping = False
        self._heard_at = monotonic()

    def run(self) -> int:
        """Until the first node or a signal ends it. Returns the exit status.

        Raises ValueError if the first node refuses this one, or falls silent.
        """
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            with private_folder() as folder:
                return self._run(folder)
        finally:
            self._context.destroy(linger=1000)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        os.write(self._wake_write, b"x")

    def _run(self, folder: str) -> int:
        ranks = self._topology.local_ranks
        self._send(NodeHello(ranks.start, len(ranks), self._topology.num_ranks, self._args))
        logger.info("waiting for the first node at %s", self._address)
        epochs = self._wait_for_welcome()
        if epochs is None:
            return 0
        self._epochs = dict(zip(ranks, epochs, strict=True))
        logger.info("joined the first node with ranks %d to %d", ranks.start, ranks.stop - 1)
        processes = CoreProcesses(self._address, ranks, folder, progress=False, log_level="WARNING")
        try:
            for rank, epoch in self._epochs.items():
                processes.start(rank, epoch)
            self._heard_at = monotonic()
            while not self._is_stopping:
                self._serve(processes)
            return 0
        finally:
            for rank in list(processes.running):
                if self._is_stopping:
                    self._send(NodeCoreDied(rank, self._epochs[rank], "its node was stopped", False))
                processes.kill(rank)
            processes.stop()

    def _wait_for_welcome(self) -> list[int] | None:
        """The epochs to start with; None if a signal came first."""
        while True:
            if self._wake_read in self._poll([], None):
                return None
            answer = msgspec.msgpack.decode(self._control.recv(), type=FromSupervisor)
            if isinstance(answer, NodeRefused):
                raise ValueError(f"the first node refuses this one: {answer.message}")
            if isinstance(answer, NodeWelcome):
                return answer.epochs

    def _serve(self, processes: CoreProcesses) -> None:
        ready = self._poll([process.fileno() for process in processes.running.values()], _BEAT)
        if self._wake_read in ready:
            self._is_stopping = True
        while self._control.poll(0):
            self._heard_at = monotonic()
            notice = msgspec.msgpack.decode(self._control.recv(), type=FromSupervisor)
            if isinstance(notice, Shutdown):
                logger.info("the first node has ended")
                self._is_stopping = True
            elif isinstance(notice, NodeRefused):
                raise ValueError(f"the first node refuses this one: {notice.message}; start it again")
        for rank, end in processes.take_ended():
            if self._is_stopping:
                continue
            is_final = not processes.may_restart(rank)
            logger.error("engine core %d has ended (%s)%s", rank, end, " for good" if is_final else "")
            self._send(NodeCoreDied(rank, self._epochs[rank], end, is_final))
            if not is_final:
                self._epochs[rank] += 1
                processes.start(rank, self._epochs[rank])
        if not self._is_stopping:
            self._send(NodeAlive())
        if monotonic() - self._heard_at > NODE_SILENCE:
            raise ValueError(f"the first node at {self._address} has been silent for {NODE_SILENCE:.0f} seconds")

    def _poll(self, fds: list[int], timeout: int | None) -> set[Any]:
        poller = zmq.Poller()
        for source in (self._control, self._wake_read, *fds):
            poller.register(source, zmq.POLLIN)
        return {source for source, _ in poller.poll(timeout)}

    def _send(self, message: ToSupervisor) -> None:
        self._control.send(msgspec.msgpack.encode(message))
