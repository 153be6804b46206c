"""Starts the engine's processes, introduces them to each other, and notices when one ends."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import getLogger
from threading import Thread
from time import monotonic
from typing import Any

import msgspec
import zmq

from pelton.config import EngineArgs
from pelton.core.control_messages import (
    CoordinatorLost,
    CoreDown,
    CoreFailed,
    CoreHello,
    CoreInfo,
    CoreReady,
    CoreWelcome,
    FromSupervisor,
    FrontEndFailed,
    FrontEndHello,
    FrontEndLost,
    MetricsCall,
    MetricsReply,
    NodeAlive,
    NodeCoreDied,
    NodeHello,
    NodeRefused,
    NodeWelcome,
    Shutdown,
    ToSupervisor,
)
from pelton.engine.child_process import ChildProcess
from pelton.engine.core_processes import CoreProcesses, RestartBudget
from pelton.engine.metrics_collector import MetricsCollector
from pelton.engine.node_registry import NodeRegistry, ranks_of
from pelton.engine.topology import Endpoints, Topology

logger = getLogger(__name__)

_END_SECONDS = 10.0
"""How long the system may take to end a process that is killed."""
_TICK = 1000
"""Milliseconds between looks at what has no event."""


@dataclass
class _Core:
    rank: int
    epoch: int = 0
    identity: bytes = b""
    """Of its control socket; empty until it has said hello."""
    info: CoreInfo | None = None
    """Of a core that is ready."""
    was_ready: bool = False
    """Whether it, or a core of this rank before it, was ever ready."""
    needs_lockstep: bool = False
    """Whether its steps wait for those of the other ranks, as far as is known."""
    failure: str = ""
    """Why it cannot start, in its own words."""
    is_final: bool = False
    """It has ended and is not started again."""


class Supervisor:
    """Owns the control socket. `run` serves it, in a thread or as the main loop of a process, until `stop`.

    Processes that end are started again, a bounded number of times: cores, the coordinator, and front ends if
    `start_front_end` starts them as processes.
    """

    def __init__(
        self,
        args: EngineArgs,
        topology: Topology,
        *,
        start_front_end: Callable[[int, Endpoints], ChildProcess] | None = None,
        before_end: Callable[[], None] = lambda: None,
        front_end_seconds: float = 0.0,
        progress: bool = False,
        log_level: str = "WARNING",
    ) -> None:
        """Starts the processes at once. `before_end`: called when nothing will be started again, and front ends are
        about to be told to end. `front_end_seconds`: how long those that are processes may take to end.

        Raises ValueError if addresses cannot be bound.
        """
        self.endpoints = Endpoints.make(topology)
        self._args = args.to_plain()
        self._topology = topology
        self._start_front_end = start_front_end
        self._before_end = before_end
        self._front_end_seconds = front_end_seconds
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control = self._context.socket(zmq.ROUTER)
        self._control.setsockopt(zmq.LINGER, 1000)
        self._control.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A node whose connection was lost comes back under its name.
        self._control.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._bind()
        self._wake_read, self._wake_write = os.pipe()
        self._cores = {rank: _Core(rank) for rank in range(topology.num_ranks)}
        self._front_ends: dict[bytes, int] = {}
        """Identity -> index, of those that have said hello."""
        self._front_end_processes: dict[int, ChildProcess] = {}
        self._front_end_budgets = [RestartBudget() for _ in range(topology.num_front_ends)]
        self._front_end_failures: dict[int, str] = {}
        """Why front ends cannot start, in their own words."""
        self._nodes = NodeRegistry(self._args, topology, self._send)
        self._lockstep_generation = 0
        self._metrics = MetricsCollector(self._send)
        self._is_stopping = False
        self._is_urgent = False
        self.failure = ""
        """Why nobody can be served any more, once `run` has ended by itself."""
        self._processes = CoreProcesses(
            self.endpoints.control,
            topology.local_ranks,
            self.endpoints.runtime_dir,
            progress=progress,
            log_level=log_level,
        )
        self._coordinator: ChildProcess | None = None
        self._coordinator_budget = RestartBudget()
        for rank in topology.local_ranks:
            self._processes.start(rank, 0)
        self._start_coordinator()
        if start_front_end is not None:
            for index in range(topology.num_front_ends):
                self._front_end_processes[index] = start_front_end(index, self.endpoints)
        self._decoder = msgspec.msgpack.Decoder(ToSupervisor)

    def _bind(self) -> None:
        try:
            self._control.bind(self.endpoints.control)
            if self.endpoints.remote_control is not None:
                self._control.bind(self.endpoints.remote_control)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            self.endpoints.remove()
            raise ValueError(
                f"data_parallel_rpc_port is {self._topology.rpc_port}, which cannot be bound at "
                f"{self._topology.address} ({error}); choose another one"
            ) from None

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._thread = Thread(target=self.run, name="pelton-supervisor", daemon=True)
        self._thread.start()

    def stop(self, *, urgent: bool = False) -> None:
        """Make `run` end, from any thread or a signal handler; the second time, or if `urgent`, at once."""
        self._is_urgent |= urgent
        os.write(self._wake_write, b"x")

    def join(self) -> None:
        """Wait for the thread of `start`."""
        self._thread.join()

    def run(self) -> None:
        """Serve until `stop`, or until nobody can be served any more; then end all processes."""
        try:
            while not self._is_stopping:
                has_deadlines = bool(self._nodes.identities) or self._metrics.is_waiting
                self._serve(self._poll(_TICK if has_deadlines else None))
        except Exception:  # nobody would notice any more what happens to the processes
            logger.exception("the supervisor failed; all processes end")
            self._give_up("the supervisor failed")
            for core in self._cores.values():
                core.is_final = True
                self._tell_core_down(core, self.failure)
        finally:
            self._end()

    def _poll(self, timeout: int | None) -> set[Any]:
        """What has something to say; at most so many milliseconds later."""
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        for process in (*self._processes.running.values(), *self._front_end_processes.values()):
            poller.register(process.fileno(), zmq.POLLIN)
        if self._coordinator is not None:
            poller.register(self._coordinator.fileno(), zmq.POLLIN)
        ready = {source for source, _ in poller.poll(timeout)}
        if self._wake_read in ready:
            os.read(self._wake_read, 1)
        return ready

    def _serve(self, ready: set[Any]) -> None:
        if self._wake_read in ready:
            self._is_stopping = True
            return
        # Messages first: a core that cannot start says why before it ends.
        while self._control.poll(0):
            identity, payload = self._control.recv_multipart()[:2]
            try:
                message = self._decoder.decode(payload)
            except (ValueError, RecursionError) as error:
                logger.error("dropped a message that cannot be read: %s", error)
                continue
            if (rank := getattr(message, "rank", 0)) not in self._cores:
                logger.error("dropped a message of rank %d, which there is not", rank)
                continue
            self._handle(identity, message)
        for ended, end in self._processes.take_ended():
            # Ranks of one group that end together are dealt with when the first of them is.
            if ended not in self._processes.running and not self._cores[ended].is_final:
                self._core_died(self._cores[ended], end)
        if self._coordinator is not None and self._coordinator.has_ended:
            self._coordinator_died(self._coordinator)
        for index, process in list(self._front_end_processes.items()):
            if process.has_ended:
                self._front_end_died(index, process)
        self._look_at_the_clock()

    def _handle(self, identity: bytes, message: Any) -> None:
        match message:
            case CoreHello():
                self._welcome_core(identity, message)
            case CoreReady():
                core = self._cores[message.rank]
                core.info, core.was_ready = message.info, True
                core.needs_lockstep = message.info.needs_lockstep
                core.failure = ""
            case CoreFailed():
                self._cores[message.rank].failure = message.message
            case FrontEndHello():
                self._front_ends[identity] = message.index
                for core in self._cores.values():
                    if core.is_final:
                        self._send(identity, _core_down(core))
            case FrontEndFailed():
                self._front_end_failures[message.index] = message.message
            case MetricsCall():
                self._metrics.collect(identity, message.call_id, self._front_ends)
            case MetricsReply():
                self._metrics.take(identity, message)
            case NodeHello():
                self._welcome_node(identity, message)
            case NodeAlive():
                if not self._nodes.note_alive(identity):
                    self._send(identity, NodeRefused("it does not know it, or has not heard of it for too long"))
            case NodeCoreDied():
                self._remote_core_died(identity, message)

    def _welcome_core(self, identity: bytes, hello: CoreHello) -> None:
        core = self._cores[hello.rank]
        core.identity, core.epoch = identity, hello.epoch
        endpoints = self.endpoints
        addresses = endpoints.local if hello.rank in self._topology.local_ranks else endpoints.remote
        assert addresses is not None, "ranks of other nodes have addresses that reach this one"
        lockstep = endpoints.lockstep(self._lockstep_generation)
        addresses = msgspec.structs.replace(addresses, lockstep=lockstep)
        self._send(identity, CoreWelcome(self._args, addresses, self._topology.num_ranks, monotonic()))

    def _core_died(self, core: _Core, end: str) -> None:
        """A core of this machine has ended."""
        # What did not start at first would not start the next time.
        core.is_final = not (core.was_ready and self._processes.may_restart(core.rank))
        self._tell_core_down(core, end)
        group = [core]
        if core.needs_lockstep:
            group += self._end_group(core)
        if not core.is_final:
            for each in group:
                self._restart(each)
        elif not core.was_ready and self._start_front_end is not None:
            self._give_up(core.failure)

    def _end_group(self, dead: _Core) -> list[_Core]:
        """Ranks whose steps wait for each other live and die together: end the others of this machine."""
        self._lockstep_generation += 1
        others = [self._cores[rank] for rank in self._topology.local_ranks if rank != dead.rank]
        for core in others:
            self._processes.end(core.rank)
            core.is_final = dead.is_final
            self._tell_core_down(core, "another rank of its group ended")
        return others

    def _restart(self, core: _Core) -> None:
        core.epoch += 1
        core.identity, core.info = b"", None
        self._processes.start(core.rank, core.epoch)

    def _give_up(self, failure: str) -> None:
        """Nobody can be served, or not as was asked for."""
        self.failure = self.failure or failure
        self._is_stopping = True

    def _tell_core_down(self, core: _Core, end: str) -> None:
        if core.was_ready:
            logger.error("engine core %d has ended (%s)%s", core.rank, end, " for good" if core.is_final else "")
            core.failure = f"engine core {core.rank} ended unexpectedly ({end}); please send the request again"
        elif not core.failure:
            core.failure = f"engine core {core.rank} ended before it was ready ({end})"
        self._tell_front_ends(_core_down(core))

    def _start_coordinator(self) -> None:
        local, remote = self.endpoints.local, self.endpoints.remote
        if local.coordinator_loads is None:
            return
        both = [local] if remote is None else [local, remote]
        self._coordinator = ChildProcess(
            "pelton.engine.coordinator",
            [
                *("--num-ranks", str(self._topology.num_ranks), "--runtime-dir", self.endpoints.runtime_dir),
                *("--loads", *(str(each.coordinator_loads) for each in both)),
                *("--to-front-ends", *(str(each.coordinator_published) for each in both)),
                *("--to-cores", *(str(each.coordinator_waves) for each in both)),
            ],
        )

    def _coordinator_died(self, process: ChildProcess) -> None:
        process.close()
        self._coordinator = None
        self._tell_front_ends(CoordinatorLost())
        is_restarted = self._coordinator_budget.take()
        plan = "it is started again" if is_restarted else "it stays away"
        logger.error("the coordinator has ended (%s); %s", process.end, plan)
        if is_restarted:
            self._start_coordinator()

    def _front_end_died(self, index: int, process: ChildProcess) -> None:
        process.close()
        del self._front_end_processes[index]
        for identity in [identity for identity, known in self._front_ends.items() if known == index]:
            del self._front_ends[identity]
            self._metrics.forget(identity)
        for core in self._cores.values():
            if core.info is not None:
                self._send(core.identity, FrontEndLost(index))
        failure = self._front_end_failures.pop(index, "")
        budget = self._front_end_budgets[index]
        if failure and budget.is_untouched:  # it has not started even once
            self._give_up(failure)
        elif self._start_front_end is not None and not failure and budget.take():
            logger.error("API server process %d has ended (%s), and is started again", index, process.end)
            self._front_end_processes[index] = self._start_front_end(index, self.endpoints)
        elif self._front_end_processes:
            logger.error("API server process %d has ended (%s) for good", index, failure or process.end)
        else:
            self._give_up(failure or f"every API server process has ended ({process.end})")

    def _welcome_node(self, identity: bytes, hello: NodeHello) -> None:
        if refusal := self._nodes.refusal_of(hello):
            self._send(identity, NodeRefused(refusal))
            return
        for ranks in self._nodes.add(identity, hello):
            self._remote_cores_down(ranks, "its node was started again")
        cores = [self._cores[rank] for rank in ranks_of(hello)]
        for core in cores:
            core.epoch += 1
            core.is_final = False
        logger.warning("another node has joined; its ranks: %s", ", ".join(str(core.rank) for core in cores))
        self._send(identity, NodeWelcome([core.epoch for core in cores]))

    def _remote_core_died(self, identity: bytes, died: NodeCoreDied) -> None:
        core = self._cores[died.rank]
        if self._nodes.has(identity, died.rank) and died.epoch == core.epoch:
            core.is_final = died.is_final
            self._remote_cores_down([died.rank], died.reason)

    def _remote_cores_down(self, ranks: Iterable[int], end: str) -> None:
        for rank in ranks:
            self._cores[rank].info = None
            self._tell_core_down(self._cores[rank], end)

    def _look_at_the_clock(self) -> None:
        self._metrics.look_at_the_clock()
        for ranks, why in self._nodes.take_lost():
            self._remote_cores_down(ranks, why)

    def _tell_front_ends(self, message: FromSupervisor) -> None:
        for identity in self._front_ends:
            self._send(identity, message)

    def _send(self, identity: bytes, message: FromSupervisor) -> bool:
        """Whether there is a connection to it. Who is not there, or does not read, does not get it."""
        try:
            self._control.send_multipart([identity, msgspec.msgpack.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return error.errno == zmq.EAGAIN
        return True

    def _end(self) -> None:
        self._end_front_ends()
        for core in self._cores.values():
            if core.identity:
                self._send(core.identity, Shutdown())
        for rank, process in self._processes.running.items():
            if self._is_urgent or self._cores[rank].info is None:
                process.kill()  # nor does it listen while it loads
        for identity in self._nodes.identities:
            self._send(identity, Shutdown())
        self._processes.stop()
        if self._coordinator is not None:
            _end_process(self._coordinator)
        self._context.destroy(linger=1000)
        self.endpoints.remove()

    def _end_front_ends(self) -> None:
        """Let front ends that are processes finish their requests; a second `stop` ends the waiting."""
        self._before_end()
        self._tell_front_ends(Shutdown())
        was_up = not self.failure and all(core.was_ready for core in self._cores.values())
        for index, process in self._front_end_processes.items():
            if not was_up or index not in self._front_ends.values():
                process.kill()  # it serves nobody yet
        deadline = monotonic() + self._front_end_seconds
        while self._front_end_processes and monotonic() < deadline:
            if self._wake_read in self._poll(_TICK):
                self._is_urgent = True
                break
            while self._control.poll(0):
                self._control.recv_multipart()
            for index, process in list(self._front_end_processes.items()):
                if process.has_ended:
                    process.close()
                    del self._front_end_processes[index]
        for process in self._front_end_processes.values():
            _end_process(process)


def _end_process(process: ChildProcess) -> None:
    """Something that needs no time to end, or has had its time."""
    process.kill()
    process.wait(_END_SECONDS)
    process.close()


def _core_down(core: _Core) -> CoreDown:
    return CoreDown(core.rank, core.epoch, core.failure, core.is_final, core.was_ready)
