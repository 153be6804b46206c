"""Engine cores of a further node, which belong to the front ends of the first: `pelton serve --headless`."""

import os
from collections import deque
from logging import getLogger
from time import monotonic
from typing import Any

import msgspec
import zmq

from pelton.config import EngineArgs
from pelton.core.control_messages import (
    FromSupervisor,
    NodeAlive,
    NodeCoreDied,
    NodeCoreReady,
    NodeHello,
    NodeRefused,
    NodeWelcome,
    Shutdown,
    ToSupervisor,
)
from pelton.engine.core_processes import CoreProcesses
from pelton.engine.node_registry import NODE_SILENCE
from pelton.engine.signals import ending_signals_handled
from pelton.engine.topology import Topology, private_folder
from pelton.engine.wake_pipe import WakePipe
from pelton.version import __version__

logger = getLogger(__name__)

_BEAT = 2000
"""Milliseconds between two signs of life."""
_HELLO_INTERVAL = 2000
"""Milliseconds until a first node that has not answered is asked again."""


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
        # Without a connection nothing can be sent: what a first node was told is not for the next one.
        self._control.setsockopt(zmq.IMMEDIATE, 1)
        self._control.connect(self._address)
        self._wake = WakePipe()
        self._epochs: dict[int, int] = {}
        self._were_ready: set[int] = set()
        """Ranks that have taken requests."""
        self._unsent: deque[NodeCoreDied] = deque()
        self._decode = msgspec.msgpack.Decoder(FromSupervisor).decode
        self._is_stopping = False
        self._heard_at = monotonic()

    def run(self) -> int:
        """Until the first node or a signal ends it. Returns the exit status.

        Raises ValueError if the first node refuses this one, or falls silent.
        """
        try:
            with ending_signals_handled(lambda _: self._wake.wake()):
                try:
                    with private_folder() as folder:
                        return self._run(folder)
                finally:
                    self._context.destroy(linger=1000)
        finally:
            self._wake.close()

    def _run(self, folder: str) -> int:
        ranks = self._topology.local_ranks
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
                    self._tell(NodeCoreDied(rank, self._epochs[rank], "its node was stopped", False))
                processes.kill(rank)
            processes.stop()

    def _wait_for_welcome(self) -> list[int] | None:
        """The epochs to start with; None if a signal came first."""
        ranks = self._topology.local_ranks
        hello = NodeHello(__version__, ranks.start, len(ranks), self._topology.num_ranks, self._args)
        is_asked = False
        while True:
            ready = self._poll([], _HELLO_INTERVAL, zmq.POLLIN if is_asked else zmq.POLLIN | zmq.POLLOUT)
            if self._wake.fileno() in ready:
                return None
            answer = self._received()
            if isinstance(answer, NodeRefused):
                raise ValueError(f"the first node refuses this one: {answer.message}")
            if isinstance(answer, NodeWelcome):
                return answer.epochs
            # Again if no answer comes: a first node that was about to end has taken it.
            is_asked = self._send(hello) if ready and not is_asked else bool(ready)

    def _serve(self, processes: CoreProcesses) -> None:
        ready = self._poll([process.fileno() for process in processes.running.values()], processes.patience(_BEAT))
        if self._wake.fileno() in ready:
            self._is_stopping = True
        while (notice := self._received()) is not None:
            self._heard_at = monotonic()
            if isinstance(notice, Shutdown):
                logger.info("the first node has ended")
                self._is_stopping = True
            elif isinstance(notice, NodeCoreReady):
                self._were_ready.add(notice.rank)
            elif isinstance(notice, NodeRefused):
                raise ValueError(f"the first node refuses this one: {notice.message}; start it again")
        for rank, end in processes.take_ended():
            if not self._is_stopping:
                self._core_died(processes, rank, end)
        if not self._is_stopping:
            processes.start_due()
            self._tell(NodeAlive())
        if monotonic() - self._heard_at > NODE_SILENCE:
            raise ValueError(f"the first node at {self._address} has been silent for {NODE_SILENCE:.0f} seconds")

    def _core_died(self, processes: CoreProcesses, rank: int, end: str) -> None:
        # What did not start at first would not start the next time.
        is_final = not (rank in self._were_ready and processes.may_restart(rank))
        plan = " for good" if is_final else ", and is started again"
        logger.error("engine core %d has ended (%s)%s", rank, end, plan)
        self._tell(NodeCoreDied(rank, self._epochs[rank], end, is_final))
        if not is_final:
            self._epochs[rank] += 1
            processes.restart({rank: self._epochs[rank]}, rank)

    def _poll(self, fds: list[int], timeout: int | None, control: int = zmq.POLLIN) -> set[Any]:
        """What is ready within so many milliseconds. `control`: what is waited for at the socket."""
        poller = zmq.Poller()
        poller.register(self._control, control)
        for source in (self._wake.fileno(), *fds):
            poller.register(source, zmq.POLLIN)
        return {source for source, _ in poller.poll(timeout)}

    def _received(self) -> FromSupervisor | None:
        """The next message, if there is one."""
        while self._control.poll(0):
            try:
                return self._decode(self._control.recv())
            except (ValueError, RecursionError) as error:  # the latter for deeply nested data
                logger.error("dropped a message that cannot be read: %s", error)
        return None

    def _tell(self, message: NodeAlive | NodeCoreDied) -> None:
        """Without a connection, a sign of life is left out, and the rest sent later."""
        if isinstance(message, NodeCoreDied):
            self._unsent.append(message)
        while self._unsent and self._send(self._unsent[0]):
            self._unsent.popleft()
        if isinstance(message, NodeAlive):
            self._send(message)

    def _send(self, message: ToSupervisor) -> bool:
        """Whether there is a connection."""
        try:
            self._control.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
