"""What a front end knows of engine cores, from what they and the supervisor say."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from pelton import SamplingParams
from pelton.core.control_messages import (
    CoordinatorLost,
    CoreDown,
    CoreInfo,
    CoreReady,
    FrontEndFailed,
    FrontEndHello,
    MetricsCall,
    MetricsReply,
    MetricsState,
    Shutdown,
    ToSupervisor,
)
from pelton.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, EngineStats, UtilityCall
from pelton.engine import core_connections
from pelton.engine.core_connections import CoreConnections, FrontEndAddresses, report_start_failure
from pelton.engine.core_sockets import PAYLOADS, MessageKind, routing_id

MILLISECONDS = 60_000
INFO = CoreInfo(num_blocks=10, block_size=4, max_model_len=40, max_num_seqs=2, description="", needs_lockstep=False)


class Core:
    """The sockets of a core's process."""

    def __init__(self, context: zmq.Context, rank: int, addresses: FrontEndAddresses) -> None:
        self.rank = rank
        self.requests = context.socket(zmq.DEALER)
        self.requests.setsockopt(zmq.IDENTITY, routing_id(rank))
        self.requests.connect(addresses.inputs[0])
        self.outputs = context.socket(zmq.PUSH)
        self.outputs.connect(addresses.outputs[0])

    def say_ready(self, epoch: int = 0) -> None:
        self.requests.send(msgspec.msgpack.encode(CoreReady(self.rank, epoch, INFO)))

    def receive(self):
        """Kind and payload of the next message."""
        assert self.requests.poll(MILLISECONDS)
        kind, payload = self.requests.recv_multipart()
        kind = MessageKind(kind)
        return kind, msgspec.msgpack.decode(payload, type=PAYLOADS[kind])

    def emit(self, *outputs: EngineCoreOutput, num_received: int = 0, running: int = 0, waiting: int = 0) -> None:
        stats = EngineStats(running, waiting, 1, 0.0, 0, 0, 0, 0)
        self.outputs.send(msgspec.msgpack.encode(EngineCoreOutputs(list(outputs), stats, self.rank, [], num_received)))


class World:
    """A front end under test, its cores and its supervisor."""

    def __init__(self, folder, num_ranks: int) -> None:
        self.context = zmq.Context()
        self.control = self.context.socket(zmq.ROUTER)
        self.control.bind(f"ipc://{folder}/control")
        self.addresses = FrontEndAddresses(
            3, [f"ipc://{folder}/input"], [f"ipc://{folder}/output"], f"ipc://{folder}/control", None, num_ranks, 1
        )
        self.connections = CoreConnections(self.addresses)
        self.finished: list[int] = []
        self.connections.on_finished = self.finished.append
        self.identity, hello = self.hear()
        assert hello == FrontEndHello(3)
        self.cores = [Core(self.context, rank, self.addresses) for rank in range(num_ranks)]

    def hear(self):
        """What the supervisor gets next, and from whom."""
        assert self.control.poll(MILLISECONDS)
        identity, payload = self.control.recv_multipart()
        return identity, msgspec.msgpack.decode(payload, type=ToSupervisor)

    def notify(self, message) -> EngineCoreOutputs | None:
        """The supervisor says something."""
        self.control.send_multipart([self.identity, msgspec.msgpack.encode(message)])
        assert self.connections.control.poll(MILLISECONDS)
        return self.connections.take_notice()

    def ready(self, rank: int, epoch: int = 0) -> EngineCoreOutputs | None:
        self.cores[rank].say_ready(epoch)
        assert self.connections.input.poll(MILLISECONDS)
        return self.connections.take_ready()

    def emit(self, rank: int, *outputs: EngineCoreOutput, **stats: int) -> EngineCoreOutputs | None:
        self.cores[rank].emit(*outputs, **{"num_received": self.connections.cores[rank].num_sent, **stats})
        assert self.connections.output.poll(MILLISECONDS)
        return self.connections.take_outputs()


@contextmanager
def world(folder, num_ranks=2) -> Iterator[World]:
    made = World(folder, num_ranks)
    try:
        yield made
    finally:
        made.connections.close()
        made.context.destroy(linger=0)


@pytest.fixture
def two(tmp_path) -> Iterator[World]:
    """Two cores, both ready."""
    with world(tmp_path) as made:
        for rank in range(2):
            assert made.ready(rank) is None
        yield made


def requests(*request_ids: str) -> list[EngineCoreRequest]:
    return [EngineCoreRequest(i, [1, 2], SamplingParams(max_tokens=3), 1.0, [0]) for i in request_ids]


def down(rank, *, epoch=0, is_final=False, was_ready=True) -> CoreDown:
    return CoreDown(rank, epoch, f"core {rank} is gone", is_final, was_ready)


def ids(outputs: EngineCoreOutputs) -> list[tuple[str, str, str]]:
    return [(output.request_id, output.finish_reason, output.stop_reason) for output in outputs.outputs]


def test_cores_become_ready(tmp_path):
    with world(tmp_path) as made:
        connections = made.connections
        assert connections.up == []
        assert not connections.is_ready
        made.ready(1)
        assert [core.rank for core in connections.up] == [1]
        assert not connections.is_ready
        made.ready(0)
        assert [core.rank for core in connections.up] == [0, 1]
        assert connections.is_ready
        assert connections.start_failure is None
        assert connections.cores[0].info == INFO


def test_requests_and_aborts_go_to_their_core(two):
    two.connections.send_requests(requests("a/0", "a/1"), 1)
    two.connections.send_requests(requests("b"), 0)
    kind, payload = two.cores[1].receive()
    assert (kind, payload) == (MessageKind.ADD, requests("a/0", "a/1"))
    assert two.cores[0].receive() == (MessageKind.ADD, requests("b"))
    two.connections.send_abort(["a/1", "b", "unknown", "a/0"])
    assert two.cores[1].receive() == (MessageKind.ABORT, ["a/1", "a/0"])
    assert two.cores[0].receive() == (MessageKind.ABORT, ["b"])
    assert sorted(two.finished) == [0, 1, 1]
    assert two.connections.in_flight == {}
    two.connections.send_utility(1, UtilityCall(5, "stats"))
    assert two.cores[1].receive() == (MessageKind.UTILITY, UtilityCall(5, "stats"))


def test_outputs_let_requests_go(two):
    two.connections.send_requests(requests("a", "b"), 1)
    outputs = two.emit(1, EngineCoreOutput("a", [5]), EngineCoreOutput("b", [6], "stop"), running=1, waiting=4)
    assert outputs.rank == 1
    assert [output.request_id for output in outputs.outputs] == ["a", "b"]
    assert list(two.connections.in_flight) == ["a"]
    assert two.finished == [1]
    core = two.connections.cores[1]
    assert (core.num_in_flight, core.num_queued()) == (1, 4)
    assert two.connections.take_outputs() is None


def test_how_many_are_queued(two):
    """As the core said, and what was sent since, as far as it finds no place."""
    core = two.connections.cores[0]
    assert core.num_queued() == 0
    two.connections.send_requests(requests("a", "b"), 0)
    assert core.num_queued() == 0  # two run at once
    two.connections.send_requests(requests("c"), 0)
    assert core.num_queued() == 1
    two.emit(0, running=2, waiting=1)
    assert core.num_queued() == 1
    two.connections.send_requests(requests("d", "e"), 0)
    assert core.num_queued() == 3
    two.emit(0, running=2, waiting=1, num_received=3)  # the last two are on their way
    assert core.num_queued() == 3
    two.emit(0, running=1)
    assert core.num_queued() == 0
    assert [core.num_queued(more) for more in (1, 2, 3)] == [0, 1, 2]
    two.emit(0, running=2, waiting=1)
    assert core.num_queued(2) == 3


def test_the_death_of_a_core_ends_its_requests(two):
    two.connections.send_requests(requests("a", "b"), 1)
    two.connections.send_requests(requests("c"), 0)
    failed = two.notify(down(1))
    assert failed.rank == 1
    assert ids(failed) == [("a", "error", "core 1 is gone"), ("b", "error", "core 1 is gone")]
    assert list(two.connections.in_flight) == ["c"]
    assert [core.rank for core in two.connections.up] == [0]
    assert two.finished == [1, 1]
    assert two.connections.start_failure is None
    assert two.ready(1, epoch=1) is None
    assert [core.rank for core in two.connections.up] == [0, 1]
    two.connections.send_requests(requests("d"), 1)
    assert two.notify(down(1, epoch=0)) is None  # late: of the one before
    assert list(two.connections.in_flight) == ["c", "d"]


def test_a_core_that_is_started_again_before_its_death_is_known(two):
    two.connections.send_requests(requests("a"), 1)
    assert [output[:2] for output in ids(two.ready(1, epoch=1))] == [("a", "error")]
    two.connections.send_requests(requests("b"), 1)
    assert two.notify(down(1, epoch=0)) is None
    assert list(two.connections.in_flight) == ["b"]
    assert two.ready(1, epoch=1) is None  # it says so again to whoever is new
    assert list(two.connections.in_flight) == ["b"]


def test_cores_that_cannot_start(tmp_path):
    with world(tmp_path) as made:
        made.ready(0)
        made.notify(down(1, is_final=True, was_ready=False))
        assert made.connections.start_failure == "core 1 is gone"
        assert not made.connections.is_ready


def test_cores_that_are_gone_for_good(tmp_path):
    """For a front end that was started later."""
    with world(tmp_path) as made:
        made.notify(down(1, is_final=True))
        assert made.connections.start_failure is None  # the other one may come
        assert not made.connections.is_ready
        made.ready(0)
        assert made.connections.is_ready
        made.notify(down(0, is_final=True))
        assert made.connections.start_failure == "core 0 is gone"


def test_a_core_that_says_nothing_is_stalled(two, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(core_connections, "monotonic", lambda: now[0])
    core = two.connections.cores[0]

    def is_stalled() -> bool:
        return two.connections.is_stalled(core, 10.0)

    now[0] += 100
    assert not is_stalled()
    two.connections.send_requests(requests("a"), 0)
    now[0] += 9
    two.connections.send_requests(requests("b"), 0)
    assert not is_stalled()
    now[0] += 2
    assert is_stalled()
    two.emit(0, EngineCoreOutput("a", [1], "stop"))
    assert not is_stalled()
    now[0] += 11
    assert is_stalled()
    two.connections.send_abort(["b"])
    assert not is_stalled()


def test_notices(two):
    heard = []
    two.connections.on_coordinator_lost = lambda: heard.append("coordinator")
    two.connections.on_shutdown = lambda: heard.append("shutdown")
    two.connections.on_metrics_reply = heard.append
    state = MetricsState(0, {}, {}, {}, None)
    two.connections.on_metrics_call = lambda: [state]
    for message in (CoordinatorLost(), Shutdown(), MetricsReply(4, [state]), MetricsCall(9)):
        assert two.notify(message) is None
    assert heard == ["coordinator", "shutdown", MetricsReply(4, [state])]
    assert two.hear() == (two.identity, MetricsReply(9, [state]))


def test_an_address_that_cannot_be_bound(tmp_path):
    addresses = FrontEndAddresses(0, [f"ipc://{tmp_path}/no/such/folder"], [], "ipc://control", None, 1, 1)
    with pytest.raises(ValueError, match="an address for the engine cores cannot be bound"):
        CoreConnections(addresses)


def test_why_a_front_end_cannot_start(tmp_path):
    with world(tmp_path) as made:
        report_start_failure(made.addresses, "no model")
        _, message = made.hear()
        assert message == FrontEndFailed(3, "no model")
