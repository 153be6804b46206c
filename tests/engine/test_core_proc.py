"""The busy loop of an engine core, turn by turn: who gets what, and what is dropped."""

from collections.abc import Iterator
from itertools import groupby
from queue import Empty

import msgspec
import pytest
import zmq

from pelton import SamplingParams
from pelton.config import EngineArgs
from pelton.core.control_messages import Addresses, FromSupervisor, FrontEndLost, Shutdown
from pelton.core.dp_messages import StartWave
from pelton.core.messages import EngineCoreOutputs, EngineCoreRequest, UtilityCall
from pelton.engine.core_proc import EngineCoreProc
from pelton.engine.core_sockets import CoreInput, CoreOutput, MessageKind, Received
from pelton.engine.engine_core import EngineCore
from pelton.engine.lockstep import SYNC_INTERVAL, LockstepGroup, LockstepLoop
from pelton.engine.served_model import ServedModel
from tests.support.serving_executors import InstantExecutor, Vocabulary
from tests.support.tiny_llama import tiny_llama

MILLISECONDS = 60_000
LIVING: list[zmq.Context] = []
TURN = "turn"
"""Where the script lets the core go on."""


class Script:
    """An inbox that has the next messages whenever the core looks, up to a `TURN`; and what the core sends."""

    def __init__(self, *items) -> None:
        self.inbox = self
        self.items = [*items, Shutdown()]
        self.sent: list[tuple[int, EngineCoreOutputs]] = []

    def get(self, block):
        if not self.items:
            raise Empty
        if self.items[0] is TURN:
            assert not block, "the core waits, though it has work"
            self.items.pop(0)
            raise Empty
        return self.items.pop(0)

    def put(self, front_end, outputs):
        self.sent.append((front_end, outputs))


class DummyExecutor(InstantExecutor):
    needs_lockstep = True
    num_dummies = 0

    def execute_dummy(self) -> None:
        self.num_dummies += 1


class Reporter:
    """Notes what the coordinator would be told."""

    def __init__(self) -> None:
        self.loads: list[tuple[int, int, int, bool]] = []
        self.completed: list[int] = []

    def report(self, *load) -> None:
        self.loads.append(load)

    def wave_complete(self, wave: int) -> None:
        self.completed.append(wave)


@pytest.fixture(scope="module")
def model() -> ServedModel:
    backend = "tests.support.serving_executors:InstantExecutor"
    return ServedModel(EngineArgs.create(model=tiny_llama(), distributed_executor_backend=backend, max_num_seqs=4))


@pytest.fixture(scope="module")
def vocabulary(model) -> Vocabulary:
    return Vocabulary(model.checkpoint.config.vocab_size, model.checkpoint.config.eos_token_ids)


def request(request_id: str, max_tokens: int = 3, length: int = 4, arrival_time: float = 100.0) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return EngineCoreRequest(request_id, list(range(1000, 1000 + length)), params, arrival_time, [2])


def add(front_end: int, *requests: EngineCoreRequest) -> Received:
    return Received(front_end, list(requests), MessageKind.ADD)


def abort(front_end: int, *request_ids: str) -> Received:
    return Received(front_end, list(request_ids), MessageKind.ABORT)


def call(front_end: int, call_id: int, name: str) -> Received:
    return Received(front_end, UtilityCall(call_id, name), MessageKind.UTILITY)


def play(model, *items, rank=0, clock_offset=0.0, **options) -> list[tuple[int, EngineCoreOutputs]]:
    """What the core sends while it gets these messages."""
    script = Script(*items)
    options = {"reporter": None, "lockstep": None, **options}
    EngineCoreProc(model.make_core(), rank, script, script, clock_offset=clock_offset, **options).run()
    return script.sent


def tokens_of(sent, front_end: int, request_id: str) -> list[int]:
    return [
        token
        for to, outputs in sent
        for output in outputs.outputs
        if (to, output.request_id) == (front_end, request_id)
        for token in output.new_token_ids
    ]


def test_every_front_end_gets_its_own(model, vocabulary):
    sent = play(model, add(0, request("a", 4)), add(2, request("b", 2), request("c", 4)), *[TURN] * 4)
    prompt = request("a").prompt_token_ids
    assert tokens_of(sent, 0, "a") == vocabulary.expected_tokens(prompt, 4)
    assert tokens_of(sent, 2, "b") == vocabulary.expected_tokens(prompt, 2)
    assert tokens_of(sent, 2, "c") == vocabulary.expected_tokens(prompt, 4)
    assert {to for to, _ in sent} == {0, 2}
    for to, outputs in sent:
        assert outputs.rank == 0
        assert {output.request_id for output in outputs.outputs} <= ({"a"} if to == 0 else {"b", "c"})


def test_the_tokens_of_a_step_count_once(model):
    sent = play(model, add(0, request("a", 2)), add(1, request("b", 2)), TURN, TURN)
    assert sum(outputs.stats.num_scheduled_tokens for _, outputs in sent) == 2 * 4 + 2


def test_a_front_end_without_requests_hears_nothing(model):
    sent = play(model, add(0, request("a", 1)), TURN, add(1, request("b", 3)), TURN, TURN, TURN)
    assert [to for to, _ in sent] == [0, 1, 1, 1]


def test_the_last_abort_tells_that_nothing_runs(model):
    sent = play(model, add(0, request("a", 50)), TURN, abort(0, "a"), TURN)
    (_, first), (to, last) = sent
    assert first.stats.num_running == 1
    assert (to, last.outputs, last.stats.num_running, last.stats.kv_cache_usage) == (0, [], 0, 0.0)


def test_aborts_of_unknown_requests(model):
    sent = play(model, abort(1, "x", "y"), TURN)
    assert [(to, outputs.outputs) for to, outputs in sent] == [(1, [])]


def test_requests_that_the_core_refuses_end_with_an_error(model, monkeypatch):
    take = EngineCore.add_request

    def add_request(core, message):
        if message.request_id == "a":
            raise ValueError("it does not fit")
        take(core, message)

    monkeypatch.setattr(EngineCore, "add_request", add_request)
    sent = play(model, add(1, request("a"), request("b", 1)), TURN, add(0, request("a")))
    ends = [(to, o.request_id, o.finish_reason, o.stop_reason) for to, each in sent for o in each.outputs]
    refusal = ("a", "error", "it does not fit")
    assert ends == [(1, "b", "length", None), (1, *refusal), (0, *refusal)]


def test_a_lost_front_end(model, vocabulary):
    """Its requests are dropped, and the others hear of the core's new state."""
    sent = play(
        model,
        add(0, request("a", 50)),
        add(1, request("b", 2)),
        TURN,
        TURN,
        call(0, 7, "stats"),
        FrontEndLost(0),
        TURN,
        add(0, request("c", 2)),  # of the one that takes its place
        TURN,
        TURN,
    )
    assert len(tokens_of(sent, 0, "a")) == 2
    assert [to for to, _ in sent] == [0, 1, 0, 1, 1, 0, 0]
    told = sent[4][1]
    assert (told.outputs, told.stats.num_running, told.stats.kv_cache_usage) == ([], 0, 0.0)
    assert not any(outputs.utility_results for _, outputs in sent)
    assert tokens_of(sent, 0, "c") == vocabulary.expected_tokens(request("c").prompt_token_ids, 2)


def test_calls(model):
    sent = play(
        model,
        add(0, request("a", 50)),
        TURN,
        call(1, 1, "stats"),
        call(1, 2, "no_such"),
        call(0, 3, "reset_prefix_cache"),
        call(1, 4, "stop_profile"),
        call(1, 5, "start_profile"),
        call(1, 6, "start_profile"),
        TURN,
        call(1, 7, "stop_profile"),
        TURN,
    )
    results = {result.call_id: result for _, outputs in sent for result in outputs.utility_results}
    assert results[1].value["num_running"] == 1
    assert results[2].error == "an engine core has no function no_such"
    assert results[3].value is True
    assert results[4].error == "no profile is being taken; start one first"
    assert (results[5].value, results[5].error) == (True, None)
    assert results[6].error == "a profile is being taken already; stop it first"
    assert "function calls" in results[7].value
    assert {result.call_id for to, outputs in sent for result in outputs.utility_results if to == 0} == {3}


def test_clocks_of_other_machines(model):
    """Front ends read times of their own clock."""
    sent = play(model, add(0, request("a", 1, arrival_time=100.0)), TURN, clock_offset=1e6)
    here = play(model, add(0, request("a", 1, arrival_time=100.0)), TURN)
    times = [outputs.outputs[0].scheduled_time for _, outputs in (*sent, *here)]
    assert times[0] == pytest.approx(times[1] - 1e6, abs=60)


def test_load_is_reported(model):
    reporter = Reporter()
    play(model, add(0, *(request(str(index), 2) for index in range(6))), *[TURN] * 4, reporter=reporter)
    changes = [load[:2] for load, _ in groupby(reporter.loads)]
    assert changes == [(0, 0), (6, 0), (2, 4), (2, 0), (0, 2), (0, 0)]


def test_lockstep(model):
    """A core without requests makes dummy steps as long as the wave lasts; requests count from when they come."""
    core = model.make_core()
    executor = core._executor = DummyExecutor(EngineArgs.create(model=tiny_llama()), model.checkpoint)
    executor.initialize([], 0, 0)
    reporter = Reporter()
    group = LockstepGroup(0, 1, "")
    lockstep = LockstepLoop(group)
    script = Script(
        StartWave(0),
        *[TURN] * SYNC_INTERVAL,
        StartWave(0),  # over
        StartWave(1),
        add(0, request("a", 5)),
        *[TURN] * SYNC_INTERVAL,
    )
    EngineCoreProc(core, 0, script, script, clock_offset=0, reporter=reporter, lockstep=lockstep).run()
    group.close()
    assert executor.num_dummies == 2 * SYNC_INTERVAL - 5
    assert len(tokens_of(script.sent, 0, "a")) == 5
    assert reporter.completed == [0, 1]
    assert (0, 0, 0, True) in reporter.loads
    assert reporter.loads[-1] == (0, 0, 2, False)


class Wires:
    """The sockets of two front ends and of the supervisor, and a core's ends of them."""

    def __init__(self, folder) -> None:
        self.context = zmq.Context()
        self.requests = [self.bound(zmq.ROUTER, f"ipc://{folder}/input-{index}") for index in range(2)]
        self.outputs = [self.bound(zmq.PULL, f"ipc://{folder}/output-{index}") for index in range(2)]
        self.control = self.bound(zmq.ROUTER, f"ipc://{folder}/control")
        self.waves = self.bound(zmq.XPUB, f"ipc://{folder}/waves")
        addresses = Addresses(
            [f"ipc://{folder}/input-{index}" for index in range(2)],
            [f"ipc://{folder}/output-{index}" for index in range(2)],
            coordinator_waves=f"ipc://{folder}/waves",
        )
        # Never closed: the threads of the core's ends wait as long as the process lives.
        self.core_context = zmq.Context()
        control = self.core_context.socket(zmq.DEALER)
        control.setsockopt(zmq.IDENTITY, b"core")
        control.connect(f"ipc://{folder}/control")
        control.send(b"hello")
        assert self.receive(self.control) == [b"core", b"hello"]
        self.source = CoreInput(self.core_context, 258, addresses, control)
        self.sink = CoreOutput(self.core_context, addresses.front_end_outputs)

    def bound(self, kind: int, address: str):
        socket = self.context.socket(kind)
        socket.bind(address)
        return socket

    @staticmethod
    def receive(socket) -> list[bytes]:
        assert socket.poll(MILLISECONDS)
        return socket.recv_multipart()

    def send(self, front_end: int, *frames: bytes) -> None:
        self.requests[front_end].send_multipart([b"\x02\x01", *frames])

    def notify(self, message: FromSupervisor) -> None:
        self.control.send_multipart([b"core", msgspec.msgpack.encode(message)])

    def next(self):
        return self.source.inbox.get(timeout=MILLISECONDS / 1000)


@pytest.fixture(scope="module")
def wires(tmp_path_factory) -> Iterator[Wires]:
    wires = Wires(tmp_path_factory.mktemp("wires"))
    LIVING.append(wires.core_context)
    assert wires.receive(wires.waves) == [b"\x01"]
    wires.source.start(b"ready")
    for socket in wires.requests:
        assert wires.receive(socket) == [b"\x02\x01", b"ready"]
    yield wires
    wires.context.destroy(linger=0)


def test_messages_arrive(wires):
    encode = msgspec.msgpack.encode
    wires.send(1, b"A", encode([request("a")]))
    assert wires.next() == add(1, request("a"))
    wires.send(0, b"X", encode(["a", "b"]))
    assert wires.next() == abort(0, "a", "b")
    wires.send(0, b"U", encode(UtilityCall(3, "stats")))
    assert wires.next() == call(0, 3, "stats")
    wires.waves.send(encode(StartWave(4)))
    assert wires.next() == StartWave(4)
    wires.notify(Shutdown())
    assert wires.next() == Shutdown()


def test_a_new_front_end_hears_of_the_core(wires):
    wires.notify(FrontEndLost(1))
    assert wires.next() == FrontEndLost(1)
    assert wires.receive(wires.requests[1]) == [b"\x02\x01", b"ready"]


@pytest.mark.parametrize(
    "frames",
    [[b"Z", b"x"], [b"A", b"\xc1"], [b"A"], [b"X", b"\x91" * 5000], [b"A", b"\x91\x91\x01"]],
)
def test_what_cannot_be_read_is_dropped(wires, frames, caplog):
    wires.send(0, *frames)
    wires.send(0, b"X", msgspec.msgpack.encode(["next"]))
    assert wires.next() == abort(0, "next")
    assert "dropped a message that cannot be read" in caplog.text


def test_what_was_not_sent_to_its_end_is_dropped(wires):
    """A front end that was interrupted ends its message with an empty frame."""
    for frames in ([b""], [b"A", b""]):
        wires.send(0, *frames)
    wires.send(0, b"X", msgspec.msgpack.encode(["next"]))
    assert wires.next() == abort(0, "next")


def test_outputs_arrive(wires, model):
    outputs = [EngineCoreOutputs([], model.make_core().stats, 258) for _ in range(2)]
    for front_end, each in enumerate(outputs):
        wires.sink.put(front_end, each)
        (payload,) = wires.receive(wires.outputs[front_end])
        assert msgspec.msgpack.decode(payload, type=EngineCoreOutputs) == each
