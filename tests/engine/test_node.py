"""What a further node and the first one say to each other, with the first one and all engine cores played."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from pelton.config import EngineArgs
from pelton.core.control_messages import (
    NodeAlive,
    NodeCoreDied,
    NodeCoreReady,
    NodeHello,
    NodeRefused,
    NodeWelcome,
    Shutdown,
    ToSupervisor,
)
from pelton.engine import core_processes, node, signals
from pelton.engine.node import Node
from pelton.engine.topology import Topology
from pelton.version import __version__
from tests.support.fake_child import FakeChild, children, value
from tests.support.http_client import wait_for

MILLISECONDS = 60_000
ARGS = EngineArgs.create(model="m")
HELLO = NodeHello(__version__, 1, 2, 3, ARGS.to_plain())


@pytest.fixture(autouse=True)
def _fake_processes(monkeypatch):
    monkeypatch.setattr(FakeChild, "made", [])
    monkeypatch.setattr(core_processes, "ChildProcess", FakeChild)
    monkeypatch.setattr(core_processes, "_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(core_processes, "_divide_cpus", lambda number: [[]] * number)
    monkeypatch.setattr(node, "_HELLO_INTERVAL", 50)
    monkeypatch.setattr(node, "_BEAT", 50)


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class FirstNode:
    """Its control socket."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(address)
        self.identity = b""

    def __enter__(self) -> "FirstNode":
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=1000)

    def hear(self, *kinds: type):
        """The next message of these kinds; other than signs of life unless told."""
        while True:
            assert self._socket.poll(MILLISECONDS), "nothing came"
            self.identity, payload = self._socket.recv_multipart()
            message = msgspec.msgpack.decode(payload, type=ToSupervisor)
            if isinstance(message, kinds) if kinds else not isinstance(message, NodeAlive):
                return message

    def say(self, message) -> None:
        payload = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        self._socket.send_multipart([self.identity, payload])

    def welcome(self, *epochs: int) -> None:
        assert self.hear(NodeHello) == HELLO
        self.say(NodeWelcome(list(epochs)))

    def num_left(self) -> int:
        """Messages that are there."""
        number = 0
        while self._socket.poll(0):
            self._socket.recv_multipart()
            number += 1
        return number


class Running:
    """A node in a thread."""

    def __init__(self, address: str, monkeypatch) -> None:
        self.handlers: list = []
        """For signals, in the order in which they were set; before it, nothing handled them."""
        played = SimpleNamespace(SIGINT=signal.SIGINT, SIGTERM=signal.SIGTERM, signal=self._set_handler)
        monkeypatch.setattr(signals, "signal", played)
        port = int(address.rpartition(":")[2])
        self.node = Node(ARGS, Topology(num_ranks=3, num_local_ranks=2, start_rank=1, rpc_port=port))
        self.result: int | str | None = None
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _set_handler(self, number, handler):
        self.handlers.append(handler)

    def _run(self) -> None:
        try:
            self.result = self.node.run()
        except ValueError as error:
            self.result = str(error)

    def signal(self) -> None:
        """At any time, also after its end."""
        wait_for(lambda: self.handlers, "the handler")
        self.handlers[0](signal.SIGTERM, None)

    def end(self) -> int | str | None:
        """What it returned, or why it failed."""
        self.thread.join(MILLISECONDS / 1000)
        assert not self.thread.is_alive()
        assert [child for child in FakeChild.made if not child.has_ended] == []
        return self.result


@contextmanager
def running(address: str, monkeypatch) -> Iterator[Running]:
    made = Running(address, monkeypatch)
    try:
        yield made
    finally:
        made.signal()
        made.end()


@pytest.fixture
def other(address, monkeypatch) -> Iterator[Running]:
    with running(address, monkeypatch) as made:
        yield made


def epochs() -> dict[int, int]:
    """Rank -> epoch, of cores that run."""
    return {value(child, "--rank"): value(child, "--epoch") for child in children("core_proc")}


def core(rank: int) -> FakeChild:
    (found,) = [child for child in children("core_proc") if value(child, "--rank") == rank]
    return found


def test_it_starts_its_ranks_and_ends_with_the_first_node(address, other):
    with FirstNode(address) as first:
        first.welcome(4, 7)
        assert isinstance(first.hear(NodeAlive), NodeAlive)
        wait_for(lambda: epochs() == {1: 4, 2: 7}, "the cores")
        first.say(b"\xc1")  # is dropped
        first.say(Shutdown())
        assert other.end() == 0


def test_it_asks_until_it_is_answered(address, other):
    """Under one name. A first node that is about to end may have taken what it asked."""
    with FirstNode(address) as first:
        assert [first.hear() for _ in range(2)] == [HELLO, HELLO]
        name = first.identity
    with FirstNode(address) as second:
        second.welcome(1, 1)
        assert second.identity == name
        second.say(NodeWelcome([8, 8]))  # of a repeated hello
        assert isinstance(second.hear(NodeAlive), NodeAlive)
        wait_for(lambda: epochs() == {1: 1, 2: 1}, "the cores")


def test_what_it_asks_does_not_pile_up(address, monkeypatch):
    monkeypatch.setattr(node, "_HELLO_INTERVAL", 2)
    polls = []
    poll = Node._poll
    monkeypatch.setattr(Node, "_poll", lambda *arguments: polls.append(1) or poll(*arguments))
    with running(address, monkeypatch) as other:
        wait_for(lambda: len(polls) > 200, "many tries")
        with FirstNode(address) as first:
            assert first.hear() == HELLO
            assert first.num_left() < 50
            first.say(NodeRefused("no"))
            assert other.end() == "the first node refuses this one: no"


def test_a_core_that_cannot_start_is_not_started_again(address, other):
    with FirstNode(address) as first:
        first.welcome(1, 1)
        wait_for(lambda: len(epochs()) == 2, "the cores")
        first.say(NodeCoreReady(1))
        core(2).ends("exit status 1")
        assert first.hear() == NodeCoreDied(2, 1, "exit status 1", is_final=True)
        wait_for(lambda: other.node._were_ready == {1}, "the news")
        core(1).ends()
        assert first.hear() == NodeCoreDied(1, 1, "signal SIGKILL", is_final=False)
        wait_for(lambda: epochs() == {1: 2}, "the one that could")


def test_a_core_is_started_again_until_it_has_ended_too_often(address, other):
    with FirstNode(address) as first:
        first.welcome(1, 1)
        wait_for(lambda: len(epochs()) == 2, "the cores")
        first.say(NodeCoreReady(2))
        wait_for(lambda: other.node._were_ready == {2}, "the news")
        for epoch in range(1, 5):
            wait_for(lambda epoch=epoch: epochs() == {1: 1, 2: epoch}, "another start")
            core(2).ends()
            assert first.hear() == NodeCoreDied(2, epoch, "signal SIGKILL", is_final=epoch == 4)
        assert epochs() == {1: 1}


def test_what_happens_without_a_connection_is_told_later(address, other, monkeypatch):
    sent = [True]
    send = other.node._send
    monkeypatch.setattr(other.node, "_send", lambda message: sent.append(send(message)) or sent[-1])
    with FirstNode(address) as first:
        first.welcome(1, 1)
        first.say(NodeCoreReady(2))
        wait_for(lambda: other.node._were_ready == {2}, "the news")
    wait_for(lambda: not sent[-1], "the end of the connection")
    core(2).ends()
    wait_for(lambda: epochs() == {1: 1, 2: 2}, "another start")
    with FirstNode(address) as first:
        assert first.hear() == NodeCoreDied(2, 1, "signal SIGKILL", is_final=False)


def test_a_signal_ends_it(address, other):
    with FirstNode(address) as first:
        first.welcome(1, 1)
        wait_for(lambda: len(epochs()) == 2, "the cores")
        other.signal()
        told = sorted((first.hear() for _ in range(2)), key=lambda died: died.rank)
        assert told == [NodeCoreDied(rank, 1, "its node was stopped", is_final=False) for rank in (1, 2)]
        assert other.end() == 0


def test_a_signal_ends_the_waiting(other):
    other.signal()
    assert other.end() == 0


def test_a_first_node_that_has_given_it_up(address, other):
    with FirstNode(address) as first:
        first.welcome(1, 1)
        first.say(NodeRefused("it does not know it"))
        assert other.end() == "the first node refuses this one: it does not know it; start it again"


def test_a_first_node_that_is_silent(address, monkeypatch):
    monkeypatch.setattr(node, "NODE_SILENCE", 0.3)
    with running(address, monkeypatch) as other, FirstNode(address) as first:
        first.welcome(1, 1)
        assert other.end() == f"the first node at {address} has been silent for 0 seconds"


def test_no_file_is_left_open(address, monkeypatch):
    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not say which files are open")

    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    numbers = []
    for _ in range(3):
        with running(address, monkeypatch):
            pass
        numbers.append(num_open())
    assert numbers[0] >= numbers[-1]
