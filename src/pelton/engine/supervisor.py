"""Starts the engine's processes, introduces them to each other, and notices when one ends."""

from collections.abc import Callable, Iterable
from logging import getLogger
from threading import Thread
from time import monotonic
from typing import Any

import msgspec
import zmq

from pelton.config import EngineArgs
from pelton.core.control_messages import (
    CoordinatorLost,
    CoreFailed,
    CoreHello,
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
    NodeCoreReady,
    NodeHello,
    NodeRefused,
    NodeWelcome,
    Shutdown,
    ToSupervisor,
)
from pelton.engine.child_process import ChildProcess
from pelton.engine.control_socket import ControlSocket
from pelton.engine.core_processes import CoreProcesses, RestartBudget
from pelton.engine.core_record import CoreRecord
from pelton.engine.front_end_processes import FrontEndProcesses
from pelton.engine.metrics_collector import MetricsCollector
from pelton.engine.node_registry import NodeRegistry, ranks_of
from pelton.engine.topology import Endpoints, Topology
from pelton.engine.wake_pipe import WakePipe

logger = getLogger(__name__)

_TICK = 1000
"""Milliseconds between looks at what has no event."""


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
        self._args = args.to_plain()  # what cannot be sent is refused before anything is made
        self.endpoints = Endpoints.make(topology)
        self._topology = topology
        self._before_end = before_end
        self._front_end_seconds = front_end_seconds
        try:
            self._control = ControlSocket(self.endpoints, topology)
        except ValueError:
            self.endpoints.remove()
            raise
        self._send = self._control.send
        self._wake = WakePipe()
        self._cores = {rank: CoreRecord(rank) for rank in range(topology.num_ranks)}
        self._front_ends: dict[bytes, int] = {}
        """Identity -> index, of those that have said hello."""
        self._nodes = NodeRegistry(self._args, topology, self._send)
        self._lockstep_generation = 0
        self._metrics = MetricsCollector(self._send)
        self._is_stopping = False
        self._is_ending = False
        """Nothing is started again; front ends finish their requests."""
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
        self._front_end_processes = (
            FrontEndProcesses(lambda index: start_front_end(index, self.endpoints), topology.num_front_ends)
            if start_front_end is not None
            else None
        )

    def start(self) -> None:
        """`run` in a thread of its own."""
        self._thread = Thread(target=self.run, name="pelton-supervisor", daemon=True)
        self._thread.start()

    def stop(self, *, urgent: bool = False) -> None:
        """Make `run` end, from any thread or a signal handler; the second time, or if `urgent`, at once."""
        self._is_urgent |= urgent
        self._wake.wake()

    def join(self) -> None:
        """Wait for the thread of `start`."""
        self._thread.join()

    def run(self) -> None:
        """Serve until `stop`, or until nobody can be served any more; then end all processes."""
        try:
            self._serve_until_stopped()
            self._end_front_ends()
        finally:
            self._end()

    def _serve_until_stopped(self) -> None:
        try:
            while not self._is_stopping:
                self._serve()
        except Exception:  # nobody would notice any more what happens to the processes
            logger.exception("the supervisor failed; all processes end")
            self._give_up("the supervisor failed")
            for core in self._cores.values():
                core.is_final = True
                self._tell_core_down(core, self.failure)

    def _serve(self) -> None:
        """Wait until something happens, and deal with it."""
        if self._wake.fileno() in self._poll():
            self._wake.take()
            self._is_urgent |= self._is_stopping  # the second time
            self._is_stopping = True
            return
        # Messages first: a core that cannot start says why before it ends.
        for identity, message in self._control.messages():
            self._take_message(identity, message)
        for ended, end in self._processes.take_ended():
            # Ranks of one group that end together are dealt with when the first of them is.
            if not self._processes.is_alive(ended) and not self._cores[ended].is_final:
                self._core_died(self._cores[ended], end)
        if self._coordinator is not None and self._coordinator.has_ended:
            self._coordinator_died(self._coordinator)
        if self._front_end_processes is not None:
            for index, end in self._front_end_processes.take_ended():
                self._front_end_died(self._front_end_processes, index, end)
        self._look_at_the_clock()

    def _poll(self) -> set[Any]:
        """What has something to say."""
        poller = zmq.Poller()
        poller.register(self._control.socket, zmq.POLLIN)
        poller.register(self._wake.fileno(), zmq.POLLIN)
        processes = [*self._processes.running.values()]
        if self._front_end_processes is not None:
            processes += self._front_end_processes.running.values()
        if self._coordinator is not None:
            processes.append(self._coordinator)
        for process in processes:
            poller.register(process.fileno(), zmq.POLLIN)
        has_deadlines = bool(self._nodes.identities) or self._metrics.is_waiting or self._is_ending
        timeout = _TICK if has_deadlines else None
        if not self._is_ending:
            timeout = self._processes.patience(timeout)
        return {source for source, _ in poller.poll(timeout)}

    def _take_message(self, identity: bytes, message: ToSupervisor) -> None:
        if (rank := getattr(message, "rank", 0)) not in self._cores:
            logger.error("dropped a message of rank %d, which there is not", rank)
            return
        try:
            self._handle(identity, message)
        except Exception:  # one message is not worth the processes of all
            logger.exception("dropped a message that cannot be dealt with")

    def _handle(self, identity: bytes, message: ToSupervisor) -> None:
        match message:
            case CoreHello():
                self._welcome_core(identity, message)
            case CoreReady() | CoreFailed():
                self._take_news(identity, message)
            case FrontEndHello():
                self._welcome_front_end(identity, message)
            case FrontEndFailed():
                if self._front_end_processes is not None:
                    self._front_end_processes.note_failure(message.index, message.message)
            case MetricsCall():
                for gone in self._metrics.collect(identity, message.call_id, self._front_ends):
                    self._forget_front_end(gone)
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
        is_local = hello.rank in self._topology.local_ranks
        if is_local:
            is_expected = hello.epoch == core.epoch and hello.rank in self._processes.running
        else:
            # Other nodes start their cores again by themselves.
            is_expected = hello.epoch >= core.epoch and self._nodes.node_of(hello.rank) is not None
        addresses = self.endpoints.local if is_local else self.endpoints.remote
        if not is_expected or addresses is None:
            logger.error("dropped the hello of a core of rank %d, which nobody has started", hello.rank)
            return
        core.note_hello(identity, hello.epoch)
        lockstep = self.endpoints.lockstep(self._lockstep_generation)
        addresses = msgspec.structs.replace(addresses, lockstep=lockstep)
        self._send(identity, CoreWelcome(self._args, addresses, self._topology.num_ranks, monotonic()))

    def _take_news(self, identity: bytes, news: CoreReady | CoreFailed) -> None:
        """Whether a core has started."""
        core = self._cores[news.rank]
        if not core.is_from_it(identity, news.epoch):
            return
        if isinstance(news, CoreFailed):
            core.own_words = news.message
            return
        core.note_ready(news.info)
        if (node := self._nodes.node_of(news.rank)) is not None:
            self._send(node, NodeCoreReady(news.rank))

    def _welcome_front_end(self, identity: bytes, hello: FrontEndHello) -> None:
        self._front_ends[identity] = hello.index
        for core in self._cores.values():
            if core.is_final:
                self._send(identity, core.down)

    def _core_died(self, core: CoreRecord, end: str) -> None:
        """A core of this machine has ended."""
        # What did not start at first would not start the next time.
        core.is_final = self._is_ending or not (core.was_ready and self._processes.may_restart(core.rank))
        self._tell_core_down(core, end)
        group = [core]
        if core.needs_lockstep:
            group += self._end_group(core)
        if not core.is_final:
            for each in group:
                each.epoch += 1
            self._processes.restart({each.rank: each.epoch for each in group}, core.rank)

    def _end_group(self, dead: CoreRecord) -> list[CoreRecord]:
        """Ranks whose steps wait for each other live and die together: end the others of this machine."""
        self._lockstep_generation += 1
        others = [self._cores[rank] for rank in self._topology.local_ranks if rank != dead.rank]
        for core in others:
            self._processes.end(core.rank)
            core.is_final = dead.is_final
            self._tell_core_down(core, "another rank of its group ended")
        return others

    def _give_up(self, failure: str) -> None:
        """Nobody can be served, or not as was asked for."""
        if not self._is_ending:
            self.failure = self.failure or failure
            self._is_stopping = True

    def _tell_core_down(self, core: CoreRecord, end: str) -> None:
        core.note_end(end)
        self._tell_front_ends(core.down)
        if core.is_final and not core.was_ready and self._front_end_processes is not None:
            self._give_up(core.failure)

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
        if self._is_ending:
            return
        is_restarted = self._coordinator_budget.take()
        plan = "it is started again" if is_restarted else "it stays away"
        logger.error("the coordinator has ended (%s); %s", process.end, plan)
        if is_restarted:
            self._start_coordinator()

    def _front_end_died(self, processes: FrontEndProcesses, index: int, end: str) -> None:
        for identity in [identity for identity, known in self._front_ends.items() if known == index]:
            self._forget_front_end(identity)
        for core in self._cores.values():
            if core.info is not None:
                self._send(core.identity, FrontEndLost(index))
        if not self._is_ending and (failure := processes.replace(index, end)):
            self._give_up(failure)

    def _forget_front_end(self, identity: bytes) -> None:
        del self._front_ends[identity]
        self._metrics.forget(identity)

    def _welcome_node(self, identity: bytes, hello: NodeHello) -> None:
        if self._is_ending:
            return  # it goes on to ask, until another first node is there
        ranks = ranks_of(hello)
        if not self._nodes.has_joined(identity, hello):
            if refusal := self._nodes.refusal_of(hello):
                self._send(identity, NodeRefused(refusal))
                return
            for replaced in self._nodes.add(identity, hello):
                self._remote_cores_down(replaced, "its node was started again")
            for rank in ranks:
                self._cores[rank].epoch += 1
                self._cores[rank].is_final = False
            logger.warning("another node has joined; its ranks: %s", ", ".join(map(str, ranks)))
        self._send(identity, NodeWelcome([self._cores[rank].epoch for rank in ranks]))

    def _remote_core_died(self, identity: bytes, died: NodeCoreDied) -> None:
        core = self._cores[died.rank]
        # A node counts the epochs of its cores by itself.
        if self._nodes.has(identity, died.rank) and died.epoch >= core.epoch:
            core.epoch, core.is_final = died.epoch, died.is_final
            self._tell_core_down(core, died.reason)

    def _remote_cores_down(self, ranks: Iterable[int], end: str) -> None:
        for rank in ranks:
            self._tell_core_down(self._cores[rank], end)

    def _look_at_the_clock(self) -> None:
        if not self._is_ending:
            self._processes.start_due()
        self._metrics.look_at_the_clock()
        for ranks, why in self._nodes.take_lost():
            self._remote_cores_down(ranks, why)

    def _tell_front_ends(self, message: FromSupervisor) -> None:
        for identity in list(self._front_ends):
            if not self._send(identity, message):
                self._forget_front_end(identity)

    def _end_front_ends(self) -> None:
        """Let front ends that are processes finish their requests; a second `stop` ends the waiting."""
        self._is_ending = True
        self._before_end()
        self._tell_front_ends(Shutdown())
        processes = self._front_end_processes
        if processes is None:
            return
        was_up = not self.failure and all(core.was_ready for core in self._cores.values())
        # The others serve nobody yet.
        processes.kill_but(self._front_ends.values() if was_up else [])
        deadline = monotonic() + self._front_end_seconds
        while processes.running and not self._is_urgent and monotonic() < deadline:
            self._serve()

    def _end(self) -> None:
        if self._front_end_processes is not None:
            self._front_end_processes.end()
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
            self._coordinator.destroy()
        self._control.close()
        self.endpoints.remove()
        self._wake.close()
