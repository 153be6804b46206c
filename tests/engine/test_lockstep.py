"""Ranks in lockstep make the same number of steps in every wave, whatever comes when, and lose nothing."""

import queue
import random
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.core.dp_messages import CoreLoad, StartWave
from pelton.engine.coordinator import CoreStates
from pelton.engine.load_reporter import LoadReporter
from pelton.engine.lockstep import SYNC_INTERVAL, LockstepError, LockstepGroup, LockstepLoop
from tests.support.coordinator import TIMEOUT, CoordinatorProcess, Sockets, next_message


@pytest.fixture
def address(tmp_path):
    return f"ipc://{tmp_path}/lockstep"


def run_ranks(address, size, work, *, timeout=TIMEOUT, ranks=None):
    """The result of `work(group)`, or its exception, for every rank; each in a thread of its own."""

    def run(rank):
        group = LockstepGroup(rank, size, address, timeout)
        try:
            return work(group)
        except Exception as error:
            return error
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size) if ranks is None else ranks))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_any_unfinished(address, size):
    chance = random.Random(size)
    votes = [[chance.random() < 0.2 for _ in range(size)] for _ in range(200)]
    answers = run_ranks(address, size, lambda group: [group.any_unfinished(vote[group.rank]) for vote in votes])
    assert answers == [[any(vote) for vote in votes]] * size


def test_over_tcp(unused_tcp_port):
    votes = [[False, False], [True, False], [False, True]]
    address = f"tcp://127.0.0.1:{unused_tcp_port}"
    answers = run_ranks(address, 2, lambda group: [group.any_unfinished(vote[group.rank]) for vote in votes])
    assert answers == [[False, True, True]] * 2


@pytest.fixture
def unused_tcp_port():
    with zmq.Context() as context, context.socket(zmq.REP) as socket:
        return socket.bind_to_random_port("tcp://127.0.0.1")


def test_no_rank_answers_before_all_have_been_asked(address):
    asked = []

    def work(group):
        for number in range(50):
            asked.append((number, group.rank))
            group.any_unfinished(True)
            assert {(number, rank) for rank in range(3)} <= set(asked)

    assert run_ranks(address, 3, work) == [None] * 3


def test_a_rank_that_is_missing(address):
    """All others learn of it from rank 0."""
    errors = run_ranks(address, 4, lambda group: group.any_unfinished(False), timeout=1.0, ranks=[0, 2])
    assert all(isinstance(error, LockstepError) for error in errors)
    assert "of its 4 ranks, these did not take part within 1 s: 1, 3" in str(errors[0])


def test_without_rank_0(address):
    (error,) = run_ranks(address, 2, lambda group: group.any_unfinished(False), timeout=0.2, ranks=[1])
    assert isinstance(error, LockstepError)
    assert "round 0: rank 0 did not answer rank 1 within 0.2 s" in str(error)


def test_another_round(address):
    """A rank that started anew, alone, does not fit in any more."""
    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        groups = [LockstepGroup(rank, 3, address, TIMEOUT) for rank in range(3)]
        assert list(pool.map(lambda group: group.any_unfinished(False), groups)) == [False] * 3
        groups[1].close()
        groups[1] = LockstepGroup(1, 3, address, TIMEOUT)
        for group in groups:
            stack.callback(group.close)

        def ask(group):
            with pytest.raises(LockstepError, match="round 1: rank 1 is in round 0"):
                group.any_unfinished(False)

        list(pool.map(ask, groups))


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x92\x00", b"\x92\xff\xc2"])
def test_nonsense_instead_of_a_vote(address, message):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.routing_id = b"\x01\x00"
        dealer.connect(address)
        dealer.send(message)
        (error,) = run_ranks(address, 2, lambda group: group.any_unfinished(False), ranks=[0])
    assert isinstance(error, LockstepError)
    assert "rank 1 sent what is no vote" in str(error)


@pytest.mark.parametrize(("rank", "size"), [(-1, 2), (2, 2), (0, 0), (0, 2**16 + 1)])
def test_ranks_that_do_not_exist(address, rank, size):
    with pytest.raises(ValueError, match="does not exist"):
        LockstepGroup(rank, size, address)


def test_ranks_of_several_machines():
    with pytest.raises(ValueError, match="models whose ranks step together must run on one machine"):
        LockstepGroup(0, 2, "")


def test_who_sends_very_much_is_disconnected(address):
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.routing_id = b"\x01\x00"
        dealer.connect(address)
        dealer.send(b"x" * 1_000_000)
        (error,) = run_ranks(address, 2, lambda group: group.any_unfinished(False), ranks=[0], timeout=0.5)
    assert "did not take part" in str(error)


def test_waves_of_one_rank():
    group = LockstepGroup(0, 1, "")
    loop = LockstepLoop(group)
    assert (loop.wave, loop.is_running) == (0, False)
    loop.on_start_wave(1)  # of another life of the group
    assert not loop.is_running
    loop.note_request()
    ends = [loop.after_step(step < SYNC_INTERVAL + 1) for step in range(2 * SYNC_INTERVAL)]
    assert ends == [False] * (2 * SYNC_INTERVAL - 1) + [True]
    assert (loop.wave, loop.is_running, loop.num_steps) == (1, False, 0)
    loop.on_start_wave(0)
    assert not loop.is_running
    loop.on_start_wave(1)
    loop.on_start_wave(1)
    assert loop.is_running
    group.close()


class Ranks:
    """The main loops of a group of ranks, in threads. A request is a number of steps."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.num_steps = defaultdict(lambda: [0] * size)
        """By wave, of every rank."""
        self.num_open = 0
        self.is_running = [False] * size
        self.waves = [0] * size
        self.threads = ThreadPoolExecutor(size)
        self.results = []

    def start(self, run) -> None:
        self.results = [self.threads.submit(run, rank) for rank in range(self.size)]

    def opened(self) -> None:
        with self.condition:
            self.num_open += 1

    def turn(self, rank, loop, work: list[int], model: threading.Barrier | None) -> bool:
        """One step, real or not. Whether it ended the wave."""
        if model is not None:
            model.wait(TIMEOUT)
        wave = loop.wave
        self.num_steps[wave][rank] += 1
        work[:] = [left - 1 for left in work]
        with self.condition:
            self.num_open -= work.count(0)
        work[:] = [left for left in work if left]
        is_end = loop.after_step(bool(work))
        assert loop.wave == wave + is_end
        return is_end

    def note_state(self, rank, loop) -> None:
        with self.condition:
            self.is_running[rank], self.waves[rank] = loop.is_running, loop.wave
            self.condition.notify()

    def is_quiet(self) -> bool:
        return not self.num_open and not any(self.is_running) and len(set(self.waves)) == 1

    def wait_until_quiet(self) -> None:
        with self.condition:
            assert self.condition.wait_for(self.is_quiet, TIMEOUT), (self.num_open, self.is_running, self.waves)

    def check(self) -> None:
        for result in self.results:
            result.result(TIMEOUT)
        self.threads.shutdown()
        for wave in range(self.waves[0]):
            assert len(set(self.num_steps[wave])) == 1, dict(self.num_steps)
            assert self.num_steps[wave][0] % SYNC_INTERVAL == 0
            assert self.num_steps[wave][0] > 0
        assert set(self.num_steps) == set(range(self.waves[0]))


class LocalCoordinator:
    """`CoreStates` in a thread. It takes its time, and says some things twice."""

    def __init__(self, inboxes: list[queue.Queue], chance: random.Random) -> None:
        self._states = CoreStates(len(inboxes))
        self._inboxes = inboxes
        self._chance = chance
        self._reports: queue.Queue[CoreLoad | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def report(self, load: CoreLoad) -> None:
        self._reports.put(load)

    def close(self) -> None:
        self._reports.put(None)
        self._thread.join()

    def _run(self) -> None:
        late: list[tuple[queue.Queue, StartWave]] = []
        while (load := self._reports.get(timeout=TIMEOUT)) is not None:
            if (start := self._states.update(load)) is None:
                continue
            messages = [(inbox, start) for inbox in self._inboxes]
            self._chance.shuffle(messages)
            for inbox, message in messages + late:
                time.sleep(self._chance.choice([0, 0, 0.0001, 0.002]))
                inbox.put(message)
            late = [message for message in messages if self._chance.random() < 0.3]


@given(
    size=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    requests=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 40), st.sampled_from([0, 0, 0.0002, 0.002, None])), max_size=25
    ),
    does_model_block=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_load(size, seed, requests, does_model_block):
    """A request has a rank, a number of steps, and a delay before it: None is until all ranks pause."""
    ranks = Ranks(size)
    model = threading.Barrier(size) if does_model_block else None
    inboxes = [queue.Queue() for _ in range(size)]
    coordinator = LocalCoordinator(inboxes, random.Random(seed))

    def run(rank):
        group = LockstepGroup(rank, size, address, TIMEOUT)
        loop = LockstepLoop(group)
        work = []
        chance = random.Random(seed + rank)
        try:
            while True:
                while not (loop.is_running and inboxes[rank].empty()):
                    message = inboxes[rank].get(timeout=TIMEOUT)
                    if message is None:
                        return
                    if isinstance(message, StartWave):
                        loop.on_start_wave(message.wave)
                    else:
                        work.append(message)
                        loop.note_request()
                    coordinator.report(CoreLoad(rank, 0, len(work), loop.wave, loop.is_running))
                if chance.random() < 0.1:
                    time.sleep(0.0005)
                if ranks.turn(rank, loop, work, model):
                    coordinator.report(CoreLoad(rank, 0, len(work), loop.wave, loop.is_running))
                ranks.note_state(rank, loop)
        finally:
            group.close()

    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/lockstep"
        ranks.start(run)
        for rank, num_steps, delay in requests:
            if delay is None:
                ranks.wait_until_quiet()
            else:
                time.sleep(delay)
            ranks.opened()
            inboxes[rank % size].put(num_steps)
        ranks.wait_until_quiet()
        for inbox in inboxes:
            inbox.put(None)
        ranks.check()
        coordinator.close()


class Cores:
    """Ranks with a coordinator process between them."""

    def __init__(self, folder: Path, coordinator: CoordinatorProcess, size: int, *, does_model_block: bool) -> None:
        self.ranks = Ranks(size)
        self._folder = folder
        self._coordinator = coordinator
        self._model = threading.Barrier(size) if does_model_block else None
        self._sockets = Sockets()
        self._requests = [self._sockets.push(self._requests_address(rank)) for rank in range(size)]
        self.ranks.start(self._run)

    def request(self, rank: int, num_steps: int) -> None:
        self.ranks.opened()
        self._requests[rank].send(str(num_steps).encode())

    def finish(self) -> None:
        self.ranks.wait_until_quiet()
        for requests in self._requests:
            requests.send(b"")
        self.ranks.check()
        self._sockets.__exit__()

    def _requests_address(self, rank: int) -> str:
        return f"ipc://{self._folder}/requests-{rank}"

    def _run(self, rank: int) -> None:
        group = LockstepGroup(rank, self.ranks.size, f"ipc://{self._folder}/lockstep", TIMEOUT)
        loop = LockstepLoop(group)
        reporter = LoadReporter(rank, self._coordinator.loads)
        work: list[int] = []
        with Sockets() as sockets, closing(group), closing(reporter):
            requests = sockets.pull(self._requests_address(rank))
            starts = sockets.subscribe(self._coordinator.to_cores)
            poller = zmq.Poller()
            poller.register(requests, zmq.POLLIN)
            poller.register(starts, zmq.POLLIN)
            while True:
                ready = dict(poller.poll(0 if loop.is_running else None))
                if requests in ready:
                    if not (message := requests.recv()):
                        return
                    work.append(int(message))
                    loop.note_request()
                if starts in ready:
                    loop.on_start_wave(next_message(starts, StartWave).wave)
                reporter.report(0, len(work), loop.wave, loop.is_running)
                if loop.is_running and self.ranks.turn(rank, loop, work, self._model):
                    reporter.report(0, len(work), loop.wave, loop.is_running)
                    if rank == 0:
                        reporter.wave_complete(loop.wave - 1)
                self.ranks.note_state(rank, loop)


@pytest.fixture
def coordinator(tmp_path):
    process = CoordinatorProcess(tmp_path, num_ranks=3)
    yield process
    process.close()


@pytest.mark.parametrize("does_model_block", [False, True])
def test_with_a_coordinator(tmp_path, coordinator, does_model_block):
    cores = Cores(tmp_path, coordinator, 3, does_model_block=does_model_block)
    chance = random.Random(1)
    for _ in range(60):
        cores.request(chance.randrange(3), chance.choice([1, 5, 16, 17, 100]))
        if chance.random() < 0.3:
            cores.ranks.wait_until_quiet()
    cores.finish()
    assert cores.ranks.waves[0] > 5


@pytest.mark.parametrize("does_model_block", [False, True])
def test_a_request_while_the_coordinator_is_dead(tmp_path, coordinator, does_model_block):
    """Nobody tells the other ranks of it. The new coordinator learns that one runs and others do not."""
    cores = Cores(tmp_path, coordinator, 3, does_model_block=does_model_block)
    cores.request(2, 5)
    cores.ranks.wait_until_quiet()
    coordinator.kill()
    cores.request(1, 20)
    with cores.ranks.condition:
        assert cores.ranks.condition.wait_for(lambda: cores.ranks.num_steps[1][1] >= (0 if does_model_block else 1), 60)
    coordinator.start()
    cores.finish()
    assert cores.ranks.num_steps[1] == [32] * 3


@pytest.mark.parametrize("does_model_block", [False, True])
def test_the_coordinator_dies_again_and_again(tmp_path, coordinator, does_model_block):
    cores = Cores(tmp_path, coordinator, 3, does_model_block=does_model_block)
    chance = random.Random(2)
    for _ in range(4):
        for _ in range(10):
            cores.request(chance.randrange(3), chance.choice([1, 5, 16, 17, 100]))
            time.sleep(chance.choice([0, 0.001, 0.01]))
        coordinator.kill()
        cores.request(chance.randrange(3), 3)
        coordinator.start()
    cores.finish()
