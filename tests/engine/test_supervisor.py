"""What the supervisor says to whom, with processes that are played."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
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
    MetricsState,
    NodeAlive,
    NodeCoreDied,
    NodeCoreReady,
    NodeHello,
    NodeRefused,
    NodeWelcome,
    Shutdown,
)
from pelton.engine import control_socket, core_processes, supervisor
from pelton.engine.control_socket import ControlSocket
from pelton.engine.core_processes import MAX_RESTARTS, RESTART_WINDOW, CoreProcesses, RestartBudget
from pelton.engine.supervisor import Supervisor
from pelton.engine.topology import Endpoints, Topology
from pelton.version import __version__
from tests.support.fake_child import FakeChild, children, value
from tests.support.http_client import wait_for

MILLISECONDS = 60_000
PROBE = 1 << 20
"""A call for figures by which it is known that all before it has been heard."""
ARGS = EngineArgs.create(model="m")
INFO = CoreInfo(10, 16, 100, 4, "", needs_lockstep=False)


class Peer:
    """A control socket."""

    def __init__(self, context, address, name: bytes) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, name)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def say(self, message) -> None:
        self.socket.send(message if isinstance(message, bytes) else msgspec.msgpack.encode(message))

    def hear(self, *, calls: bool = False):
        """The next message that is not only a sign of life. `calls`: also those for figures."""
        while True:
            assert self.socket.poll(MILLISECONDS)
            message = msgspec.msgpack.decode(self.socket.recv(), type=FromSupervisor)
            if isinstance(message, NodeAlive) or (isinstance(message, MetricsCall) and not calls):
                continue
            if message != MetricsReply(PROBE, []):
                return message


class World:
    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.context = zmq.Context()
        self.peers: list[Peer] = []

    def peer(self, name: str) -> Peer:
        self.peers.append(Peer(self.context, self.supervisor.endpoints.control, name.encode()))
        return self.peers[-1]

    def front_end(self, index=0) -> Peer:
        """One that has been heard."""
        peer = self.peer(f"front-end-{index}-{os.urandom(4).hex()}")
        peer.say(FrontEndHello(index))
        peer.say(MetricsCall(PROBE))
        assert isinstance(peer.hear(calls=True), MetricsCall)
        return peer

    def core(self, rank=0, epoch=0, info=INFO) -> Peer:
        """One that has got ready."""
        peer = self.peer(f"core-{rank}-{epoch}")
        peer.say(CoreHello(rank, epoch))
        assert isinstance(peer.hear(), CoreWelcome)
        peer.say(CoreReady(rank, epoch, info))
        return peer


@pytest.fixture(autouse=True)
def _fake_processes(monkeypatch):
    monkeypatch.setattr(FakeChild, "made", [])
    monkeypatch.setattr(core_processes, "ChildProcess", FakeChild)
    monkeypatch.setattr(core_processes, "_PAUSES", (0.0,) * MAX_RESTARTS)
    monkeypatch.setattr(supervisor, "ChildProcess", FakeChild)


@contextmanager
def world(num_ranks=1, **options) -> Iterator[World]:
    topology = options.pop("topology", None) or Topology(num_ranks=num_ranks, num_local_ranks=num_ranks)
    made = World(Supervisor(ARGS, topology, **options))
    made.supervisor.start()
    try:
        yield made
    finally:
        made.supervisor.stop(urgent=True)
        made.supervisor.join()
        made.context.destroy(linger=0)
    assert not Path(made.supervisor.endpoints.runtime_dir).exists()
    assert [child for child in FakeChild.made if not child.has_ended] == []


def core_process(rank: int, epoch: int) -> FakeChild:
    """The process of this start of a rank."""
    found: list[FakeChild] = []

    def is_there() -> bool:
        found[:] = [
            child
            for child in FakeChild.made
            if child.module.endswith("core_proc") and (value(child, "--rank"), value(child, "--epoch")) == (rank, epoch)
        ]
        return bool(found)

    wait_for(is_there, "the start")
    (child,) = found
    return child


def test_budgets(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(core_processes, "monotonic", lambda: now[0])
    budget = RestartBudget()
    assert budget.is_untouched
    assert [budget.take() for _ in range(MAX_RESTARTS + 2)] == [True] * MAX_RESTARTS + [False] * 2
    assert not budget.is_untouched
    now[0] += RESTART_WINDOW + 1
    assert budget.take()


def test_processors_are_divided(monkeypatch):
    monkeypatch.setattr("pelton.runner.cpu_count.divide_cpus", lambda number: [[rank, 9] for rank in range(number)])
    for ranks, cpus in (([], []), ([0], [None]), ([2, 3], ["0,9", "1,9"])):
        processes = CoreProcesses("control", ranks, "folder", progress=False, log_level="WARNING")
        for rank in ranks:
            processes.start(rank, 0)
        arguments = [processes.running[rank].arguments for rank in ranks]
        assert [a[a.index("--cpus") + 1] if "--cpus" in a else None for a in arguments] == cpus
        for rank in ranks:
            processes.end(rank)


def test_a_core_is_welcomed():
    with world() as made:
        core = made.peer("core")
        core.say(CoreHello(0, 0))
        welcome = core.hear()
        assert welcome.engine_args == ARGS.to_plain()
        assert (welcome.addresses, welcome.num_ranks) == (made.supervisor.endpoints.local, 1)


def test_a_core_that_ends_is_started_again_until_it_has_ended_too_often():
    with world() as made:
        front_end = made.front_end()
        for epoch in range(MAX_RESTARTS + 1):
            process = core_process(0, epoch)
            core = made.core(0, epoch)
            made.front_end()  # whoever comes after it has been heard
            process.ends()
            is_final = epoch == MAX_RESTARTS
            reason = "engine core 0 ended unexpectedly (signal SIGKILL); please send the request again"
            assert front_end.hear() == CoreDown(0, epoch, reason, is_final, was_ready=True)
            core.socket.close()
        assert children("core_proc") == []
        peer = made.peer("late")
        peer.say(FrontEndHello(0))
        assert peer.hear() == CoreDown(0, MAX_RESTARTS, reason, True, True)


@pytest.mark.parametrize("failure", ["the model is broken", None])
def test_a_core_that_cannot_start(failure):
    with world() as made:
        front_end = made.front_end()
        core = made.peer("core")
        core.say(CoreHello(0, 0))
        core.hear()
        if failure is not None:
            core.say(CoreFailed(0, 0, failure))
        made.front_end()
        core_process(0, 0).ends("exit status 1")
        failure = failure or "engine core 0 ended before it was ready (exit status 1)"
        assert front_end.hear() == CoreDown(0, 0, failure, True, was_ready=False)


def test_a_core_that_cannot_start_again_says_why(caplog):
    with world() as made:
        front_end = made.front_end()
        made.core()
        made.front_end()
        core_process(0, 0).ends()
        assert "signal SIGKILL" in front_end.hear().reason
        core_process(0, 1)
        stale = made.peer("core-0-0")
        stale.say(CoreFailed(0, 0, "of another one"))
        stale.say(CoreReady(0, 0, INFO))
        core = made.peer("core-0-1")
        core.say(CoreHello(0, 1))
        core.hear()
        core.say(CoreFailed(0, 1, "the model is gone"))
        made.front_end()
        core_process(0, 1).ends("exit status 1")
        assert front_end.hear() == CoreDown(0, 1, "the model is gone", False, was_ready=True)
        assert "engine core 0 has ended (exit status 1: the model is gone)" in caplog.text
        core_process(0, 2).ends()
        assert "the model" not in front_end.hear().reason


def test_restarts_wait_longer_and_longer(monkeypatch):
    now = [1000.0]
    monkeypatch.undo()
    monkeypatch.setattr(FakeChild, "made", [])
    monkeypatch.setattr(core_processes, "ChildProcess", FakeChild)
    monkeypatch.setattr(core_processes, "monotonic", lambda: now[0])
    processes = CoreProcesses("control", [4], "folder", progress=False, log_level="WARNING")
    processes.start(4, 0)
    for epoch, pause in enumerate((0.0, 1.0, 2.0), start=1):
        assert processes.patience(None) is None
        processes.running[4].ends()
        assert processes.take_ended() == [(4, "signal SIGKILL")]
        assert not processes.is_alive(4)
        assert processes.may_restart(4)
        processes.restart({4: epoch}, 4)
        assert processes.is_alive(4)
        if pause:
            assert processes.patience(None) == processes.patience(10_000) == 1000 * pause
            assert processes.patience(7) == 7
            now[0] += pause - 0.25
            processes.start_due()
            assert not processes.running
            now[0] += 0.25
            assert processes.patience(None) == 0
            processes.start_due()
        assert value(processes.running[4], "--epoch") == epoch
    assert not processes.may_restart(4)
    now[0] += RESTART_WINDOW + 1
    for _ in range(2):
        assert processes.may_restart(4)
    processes.restart({4: 9}, 4)
    processes.end(4)
    assert not processes.is_alive(4)
    assert processes.patience(None) is None
    now[0] += 10
    processes.start_due()
    assert not processes.running


def test_other_things_happen_while_a_restart_waits(monkeypatch):
    monkeypatch.setattr(core_processes, "_PAUSES", (1000.0,))
    info = msgspec.structs.replace(INFO, needs_lockstep=True)
    with world(2) as made:
        front_end = made.front_end()
        for rank in range(2):
            made.core(rank, 0, info)
        made.front_end()
        first, second = [core_process(rank, 0) for rank in range(2)]
        second.ends_unnoticed()
        first.ends()
        downs = [front_end.hear() for _ in range(2)]
        assert sorted((down.rank, down.is_final) for down in downs) == [(0, False), (1, False)]
        made.front_end()
        assert len([child for child in FakeChild.made if child.module.endswith("core_proc")]) == 2
        assert [core.epoch for core in made.supervisor._cores.values()] == [1, 1], "they end together, and once"


def test_ranks_in_lockstep_end_together():
    info = msgspec.structs.replace(INFO, needs_lockstep=True)
    with world(2) as made:
        front_end = made.front_end()
        for rank in range(2):
            made.core(rank, 0, info)
        made.front_end()
        first = [core_process(rank, 0) for rank in range(2)]
        first[1].ends()
        downs = [front_end.hear() for _ in range(2)]
        assert [(down.rank, down.epoch, down.is_final) for down in downs] == [(1, 0, False), (0, 0, False)]
        assert "another rank of its group ended" in downs[1].reason
        assert first[0].has_ended
        second = [core_process(rank, 1) for rank in range(2)]
        # One that ends before it is ready is of the group still.
        second[0].ends()
        downs = [front_end.hear() for _ in range(2)]
        assert [(down.rank, down.epoch, down.is_final) for down in downs] == [(0, 1, False), (1, 1, False)]
        for rank in range(2):
            core_process(rank, 2)
        assert len(children("core_proc")) == 2


def test_addresses_of_a_group_are_never_used_again():
    info = msgspec.structs.replace(INFO, needs_lockstep=True)
    with world(2) as made:
        addresses = []
        for epoch in range(2):
            core = made.peer(f"core-{epoch}")
            core.say(CoreHello(0, epoch))
            addresses.append(core.hear().addresses.lockstep)
            core.say(CoreReady(0, epoch, info))
            made.front_end()
            core_process(0, epoch).ends()
            core_process(0, epoch + 1)
        assert len(set(addresses)) == 2


def test_the_coordinator_is_started_again():
    with world(2) as made:
        front_end = made.front_end()
        (coordinator,) = children("coordinator")
        coordinator.ends()
        assert front_end.hear() == CoordinatorLost()
        wait_for(lambda: children("coordinator") not in ([], [coordinator]), "another one")
        (again,) = children("coordinator")
        assert again.arguments == coordinator.arguments


def test_figures_are_collected():
    with world() as made:
        one, other = (made.front_end(index) for index in range(2))
        one.say(MetricsCall(7))
        state = MetricsState(0, {"a": 1}, {}, {}, None)
        for peer in (one, other):
            call = peer.hear(calls=True)
            while call.call_id < 3:
                call = peer.hear(calls=True)
            peer.say(MetricsReply(call.call_id, [state]))
        assert one.hear() == MetricsReply(7, [state, state])


@pytest.mark.parametrize(
    "message",
    [b"", b"\xc1", b"\x91" * 3000, CoreHello(5, 0), CoreReady(-1, 0, INFO), CoreFailed(99, 0, ""), Shutdown()],
)
def test_messages_that_make_no_sense(message):
    with world() as made:
        made.peer("junk").say(message)
        made.front_end()
        made.core()


def test_a_message_that_cannot_be_dealt_with_is_dropped(monkeypatch, caplog):
    with world() as made:
        monkeypatch.setattr(made.supervisor._nodes, "note_alive", lambda _: 1 / 0)
        made.peer("anybody").say(NodeAlive())
        made.front_end()
        made.core()
        wait_for(lambda: "ZeroDivisionError" in caplog.text, "the log")


@pytest.mark.parametrize("hello", [CoreHello(0, 1), CoreHello(0, 1 << 53), CoreHello(1, 0)])
def test_cores_that_nobody_has_started(hello):
    """They get neither arguments nor addresses."""
    with world(topology=node_topology()) as made:
        stranger = made.peer("stranger")
        stranger.say(hello)
        stranger.say(NodeAlive())
        assert isinstance(stranger.hear(), NodeRefused)
        stranger.say(CoreReady(0, 0, INFO))
        stranger.say(CoreFailed(0, 0, "anything"))
        made.front_end()
        assert not made.supervisor._cores[0].was_ready
        assert made.supervisor._cores[0].own_words == ""
        made.core()


def test_a_front_end_that_is_gone_is_not_asked():
    """Its hello may be read after its end."""
    with world() as made:
        made.supervisor._front_ends[b"gone"] = made.supervisor._front_ends[b"gone, too"] = 0
        peer = made.peer("front end")
        peer.say(FrontEndHello(0))
        peer.say(MetricsCall(7))
        call = peer.hear(calls=True)
        peer.say(MetricsReply(call.call_id, []))
        assert peer.hear() == MetricsReply(7, [])
        assert len(made.supervisor._front_ends) == 1
        made.core()
        made.front_end()
        made.supervisor._front_ends[b"gone"] = 0
        core_process(0, 0).ends()
        assert isinstance(peer.hear(), CoreDown)
        wait_for(lambda: b"gone" not in made.supervisor._front_ends, "that it is forgotten")


def test_addresses_that_cannot_be_bound():
    topology = node_topology()
    with socket.create_server(("127.0.0.1", topology.rpc_port)):
        words = f"data_parallel_rpc_port is {topology.rpc_port}, which cannot be bound at 127.0.0.1 .*; choose another"
        with pytest.raises(ValueError, match=words):
            Supervisor(ARGS, topology)
    endpoints = Endpoints.make(topology)
    endpoints.remove()
    with pytest.raises(ValueError, match=r"ipc://.*/control .* cannot be bound \(.*\); set TMPDIR to another folder"):
        ControlSocket(endpoints, topology)


def test_who_sends_very_much_is_disconnected(monkeypatch):
    monkeypatch.setattr(control_socket, "_MAX_MESSAGE_SIZE", 10_000)
    with world() as made:
        stranger = made.peer("stranger")
        monitor = stranger.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.say(b"x" * 10_001)
        assert monitor.poll(MILLISECONDS)
        stranger.socket.disable_monitor()
        made.front_end()


def test_much_can_be_sent_to_a_peer_that_does_not_read():
    topology = Topology()
    endpoints = Endpoints.make(topology)
    control = ControlSocket(endpoints, topology)
    context = zmq.Context()
    try:
        peer = Peer(context, endpoints.control, b"peer")
        peer.say(NodeAlive())
        assert control.socket.poll(MILLISECONDS)
        assert list(control.messages()) == [(b"peer", NodeAlive())]
        texts = [f"{index:10000}" for index in range(3000)]
        assert all(control.send(b"peer", NodeRefused(text)) for text in texts)
        assert [peer.hear().message for _ in texts] == texts
    finally:
        context.destroy(linger=0)
        control.close()
        endpoints.remove()


def test_no_file_is_left_open():
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not say which files are open")
    with world():
        pass
    before = num_open()
    for _ in range(3):
        with world():
            pass
    assert num_open() <= before


def test_a_failure_of_its_own_is_told(monkeypatch, caplog):
    with world() as made:
        front_end = made.front_end()
        monkeypatch.setattr(made.supervisor, "_look_at_the_clock", lambda: 1 / 0)
        made.peer("anybody").say(NodeAlive())
        down = front_end.hear()
        while isinstance(down, NodeRefused):
            down = front_end.hear()
        assert (down.rank, down.is_final) == (0, True)
        made.supervisor.join()
        assert made.supervisor.failure == "the supervisor failed"
        assert "ZeroDivisionError" in caplog.text


class FrontEnds:
    """API processes that are played."""

    def __init__(self) -> None:
        self.started: list[FakeChild] = []

    def start(self, index, endpoints) -> FakeChild:
        child = FakeChild("api_process", [str(index)])
        self.started.append(child)
        return child


@pytest.fixture
def front_ends() -> FrontEnds:
    return FrontEnds()


def test_front_ends_are_started_again(front_ends):
    topology = Topology(num_local_ranks=1, num_front_ends=2)
    with world(topology=topology, start_front_end=front_ends.start) as made:
        core = made.core()
        made.front_end(0)
        made.front_end(1)
        front_ends.started[1].ends()
        assert core.hear() == FrontEndLost(1)
        wait_for(lambda: len(front_ends.started) == 3, "another one")
        assert front_ends.started[2].arguments == ["1"]
        assert made.supervisor.failure == ""


def test_a_front_end_that_cannot_start_ends_all(front_ends):
    topology = Topology(num_local_ranks=1, num_front_ends=2)
    with world(topology=topology, start_front_end=front_ends.start, front_end_seconds=1000.0) as made:
        peer = made.front_end(1)
        peer.say(FrontEndFailed(1, "no such model"))
        made.front_end(0)
        front_ends.started[1].ends("exit status 2")
        made.supervisor.join()
        assert made.supervisor.failure == "no such model"
        assert front_ends.started[0].has_ended


def test_a_core_that_cannot_start_ends_front_ends_that_are_processes(front_ends):
    topology = Topology(num_local_ranks=1, num_front_ends=2)
    with world(topology=topology, start_front_end=front_ends.start, front_end_seconds=1000.0) as made:
        core_process(0, 0).ends("exit status 1")
        made.supervisor.join()
        assert made.supervisor.failure == "engine core 0 ended before it was ready (exit status 1)"
        assert len(front_ends.started) == 2


def test_front_ends_may_finish_their_requests(front_ends):
    closed = []
    topology = Topology(num_local_ranks=1, num_front_ends=2)
    options = {"before_end": lambda: closed.append(True), "front_end_seconds": 1000.0}
    with world(topology=topology, start_front_end=front_ends.start, **options) as made:
        core = made.core()
        peer = made.front_end(0)
        made.supervisor.stop()
        assert peer.hear() == Shutdown()
        assert closed == [True]
        wait_for(lambda: front_ends.started[1].has_ended, "the end of one that has said nothing yet")
        assert not front_ends.started[0].has_ended
        assert core.hear() == FrontEndLost(1)
        front_ends.started[0].ends("exit status 0")
        assert [core.hear(), core.hear()] == [FrontEndLost(0), Shutdown()]
        made.supervisor.join()
        assert made.supervisor.failure == ""


def test_while_front_ends_finish_nothing_is_started_again(front_ends):
    """But they hear of what ends, and get their figures."""
    topology = Topology(num_ranks=2, num_local_ranks=2, num_front_ends=2)
    with world(topology=topology, start_front_end=front_ends.start, front_end_seconds=1000.0) as made:
        for rank in range(2):
            made.core(rank)
        peers = [made.front_end(index) for index in range(2)]
        made.supervisor.stop()
        assert [peer.hear() for peer in peers] == [Shutdown(), Shutdown()]
        core_process(0, 0).ends()
        (coordinator,) = children("coordinator")
        coordinator.ends()
        heard = [peers[0].hear() for _ in range(2)]
        (down,) = [message for message in heard if isinstance(message, CoreDown)]
        assert (down.rank, down.epoch, down.is_final) == (0, 0, True)
        assert CoordinatorLost() in heard
        front_ends.started[1].ends("exit status 0")
        wait_for(lambda: made.supervisor._front_end_processes.running.keys() == {0}, "the end of one")
        peers[0].say(MetricsCall(7))
        call = peers[0].hear(calls=True)
        while call.call_id < 3:
            call = peers[0].hear(calls=True)
        peers[0].say(MetricsReply(call.call_id, []))
        assert peers[0].hear() == MetricsReply(7, [])
        assert (len(FakeChild.made), len(children("core_proc"))) == (5, 1)
        assert made.supervisor._processes.running.keys() == {1}, "what has ended is not looked at again and again"
        node = made.peer("node")
        node.say(NodeHello(__version__, 0, 1, 2, ARGS.to_plain()))
        node.say(NodeAlive())
        assert isinstance(node.hear(), NodeRefused)
        front_ends.started[0].ends("exit status 0")
        made.supervisor.join()
        assert made.supervisor.failure == ""
        assert not node.socket.poll(0)


def test_the_second_stop_ends_the_waiting(front_ends):
    topology = Topology(num_local_ranks=1, num_front_ends=1)
    with world(topology=topology, start_front_end=front_ends.start, front_end_seconds=1000.0) as made:
        made.core()
        peer = made.front_end(0)
        made.supervisor.stop()
        assert peer.hear() == Shutdown()
        assert not front_ends.started[0].has_ended
        made.supervisor.stop()
        made.supervisor.join()
        assert front_ends.started[0].has_ended
        made.supervisor.stop()  # as a signal may come late


def node_topology() -> Topology:
    """Of a first node whose ranks are not looked at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return Topology(num_ranks=3, num_local_ranks=1, rpc_port=probe.getsockname()[1])


def hello(start=1, number=2, size=3, **changes) -> NodeHello:
    return NodeHello(__version__, start, number, size, {**ARGS.to_plain(), **changes})


def test_a_node():
    with world(topology=node_topology()) as made:
        front_end = made.front_end()
        node = made.peer("node")
        node.say(hello(max_num_seqs=77))
        assert node.hear() == NodeRefused("max_num_seqs is 256 on the first node and 77 here")
        node.say(NodeAlive())
        assert isinstance(node.hear(), NodeRefused)
        for _ in range(2):  # it has heard of no answer
            node.say(hello())
            assert node.hear() == NodeWelcome([1, 1])
        other = made.peer("other")
        other.say(hello())
        assert "overlap" in other.hear().message
        core = made.peer("core-2")
        core.say(CoreHello(2, 1))
        assert core.hear().addresses.front_end_inputs == made.supervisor.endpoints.remote.front_end_inputs
        core.say(CoreReady(2, 1, INFO))
        made.front_end()
        stranger = made.peer("stranger")
        stranger.say(NodeCoreDied(2, 1, "nothing", True))
        assert node.hear() == NodeCoreReady(2)
        node.say(NodeCoreDied(2, 0, "late", True))
        node.say(NodeCoreDied(2, 1, "signal SIGKILL", False))
        down = front_end.hear()
        assert (down.rank, down.epoch, down.is_final) == (2, 1, False)
        assert "signal SIGKILL" in down.reason
        # Its next ones may end before they have said anything here.
        node.say(NodeCoreDied(2, 3, "exit status 1", False))
        assert (front_end.hear().epoch, core.socket.poll(0)) == (3, 0)
        node.socket.close()
        downs = [front_end.hear() for _ in range(2)]
        assert [(down.rank, down.is_final) for down in downs] == [(1, False), (2, False)]
        assert "its node is gone" in downs[1].reason
        again = made.peer("again")
        again.say(hello())
        assert again.hear() == NodeWelcome([2, 4])
        made.supervisor.stop()
        assert again.hear() == Shutdown()
