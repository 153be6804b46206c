"""The coordinator publishes loads, starts waves, and survives whatever it is sent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.core.dp_messages import CoreLoad, LoadsPublished, StartWave, WaveComplete
from pelton.engine.coordinator import CoreStates
from pelton.engine.load_reporter import REPEAT_INTERVAL
from tests.support.coordinator import TIMEOUT, CoordinatorProcess, Sockets, next_message

GARBAGE = [
    b"",
    b"\xc1",
    b"\xff" * 100,
    b"\x91" * 60_000,
    msgspec.msgpack.encode(["CORE_LOAD"]),
    msgspec.msgpack.encode(["START_DP_WAVE", 3]),
    msgspec.msgpack.encode(["WAVE_COMPLETE", 2**64 - 1]),
    msgspec.msgpack.encode(["CORE_LOAD", 2, 0, 0, 0, False]),
    msgspec.msgpack.encode(["CORE_LOAD", -1, 0, 0, 0, False]),
    msgspec.msgpack.encode(["CORE_LOAD", 0, -1, 0, 0, False]),
    msgspec.msgpack.encode(["CORE_LOAD", 0, 0, 0, 2**63, True]),
    b"\x97" + msgspec.msgpack.encode(["CORE_LOAD", 0, 9, 9, 9, True])[1:] + b"\x91" * 60_000 + b"\x01",
]


@pytest.fixture
def coordinator(tmp_path):
    process = CoordinatorProcess(tmp_path, num_ranks=2)
    yield process
    process.close()


@pytest.fixture
def sockets():
    with Sockets() as sockets:
        yield sockets


def send(socket, *messages):
    for message in messages:
        socket.send(msgspec.msgpack.encode(message))


def wait_for_loads(socket, loads):
    while (published := next_message(socket, LoadsPublished)).loads != loads:
        pass
    return published


def wait_for_subscription(socket, cores, *reports):
    """Repeat what makes the coordinator start a wave until this subscriber hears of it."""
    for _ in range(600):
        send(cores, *reports)
        if socket.poll(100):
            return next_message(socket, StartWave)
    raise AssertionError("nothing came")


def drain(socket):
    while socket.poll(300):
        socket.recv()


def test_loads_reach_every_front_end(coordinator, sockets):
    cores = sockets.push(coordinator.loads)
    first = sockets.subscribe(coordinator.to_front_ends)
    send(cores, CoreLoad(0, 3, 4), CoreLoad(1, 0, 1))
    assert wait_for_loads(first, [(3, 4), (0, 1)]) == LoadsPublished([(3, 4), (0, 1)], wave=0, is_running=False)
    # Nothing changes any more, but the next one to come must hear it too.
    second = sockets.subscribe(coordinator.to_front_ends)
    wait_for_loads(second, [(3, 4), (0, 1)])
    send(cores, CoreLoad(1, 0, 0))
    for socket in first, second:
        wait_for_loads(socket, [(3, 4), (0, 0)])


def test_ranks_that_do_not_report_are_waited_for_but_not_for_ever(tmp_path, sockets):
    """Until those with work must have reported, a new coordinator would take busy ranks for idle ones."""
    began = time.monotonic()
    coordinator = CoordinatorProcess(tmp_path, num_ranks=2)
    try:
        front_end = sockets.subscribe(coordinator.to_front_ends)
        send(sockets.push(coordinator.loads), CoreLoad(0, 1, 2))
        assert next_message(front_end, LoadsPublished).loads == [(1, 2), (0, 0)]
        assert time.monotonic() - began > REPEAT_INTERVAL
    finally:
        coordinator.close()


def test_publications_are_few_and_only_of_news(coordinator, sockets):
    cores = sockets.push(coordinator.loads)
    front_end = sockets.subscribe(coordinator.to_front_ends)
    send(cores, CoreLoad(0, 0, 0), CoreLoad(1, 0, 0))
    wait_for_loads(front_end, [(0, 0), (0, 0)])
    for number in range(1, 2001):
        send(cores, CoreLoad(0, number, 0))
    num_published = 1
    while next_message(front_end, LoadsPublished).loads != [(2000, 0), (0, 0)]:
        num_published += 1
    assert num_published < 200
    drain(front_end)
    for _ in range(100):
        send(cores, CoreLoad(0, 2000, 0))
    assert not front_end.poll(500)


def test_a_core_that_runs_starts_the_others(coordinator, sockets):
    cores = sockets.push(coordinator.loads)
    starts = sockets.subscribe(coordinator.to_cores)
    assert wait_for_subscription(starts, cores, CoreLoad(0, 1, 0, 7, True)) == StartWave(7)
    drain(starts)
    send(cores, CoreLoad(1, 0, 0, 7, True))
    send(cores, CoreLoad(0, 0, 1, 7, True))  # both run: nobody needs to be told
    send(cores, CoreLoad(0, 0, 0, 7, True), WaveComplete(7))
    send(cores, CoreLoad(1, 1, 0, 8, True))
    assert next_message(starts, StartWave) == StartWave(8)


def test_the_end_of_a_wave_is_published(coordinator, sockets):
    cores = sockets.push(coordinator.loads)
    front_end = sockets.subscribe(coordinator.to_front_ends)
    send(cores, CoreLoad(0, 0, 1, 3, True), CoreLoad(1, 0, 0, 3, True))
    assert wait_for_loads(front_end, [(0, 1), (0, 0)]) == LoadsPublished([(0, 1), (0, 0)], 3, True)
    send(cores, WaveComplete(3))
    assert next_message(front_end, LoadsPublished) == LoadsPublished([(0, 1), (0, 0)], 4, False)


def test_garbage_is_dropped(coordinator, sockets):
    front_end = sockets.subscribe(coordinator.to_front_ends)
    cores = sockets.push(coordinator.loads)
    for garbage in GARBAGE:
        cores.send(garbage)
        cores.send_multipart([garbage, b"", b"more"])
    sockets.push(coordinator.loads).send(b"x" * 1_000_000)  # whoever sends that much is disconnected
    send(cores, CoreLoad(0, 1, 2), CoreLoad(1, 3, 4))
    wait_for_loads(front_end, [(1, 2), (3, 4)])
    coordinator.process.kill()
    errors = coordinator.end()
    assert errors.count("dropped a malformed report of a core") == 2 * len(GARBAGE)
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_to_the_group_are_ignored(coordinator, sockets, number):
    coordinator.process.send_signal(number)
    front_end = sockets.subscribe(coordinator.to_front_ends)
    next_message(front_end, LoadsPublished)
    assert coordinator.process.poll() is None


def test_it_ends_with_its_parent(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    coordinator = CoordinatorProcess(folder, num_ranks=1)
    coordinator.kill()
    read, write = os.pipe()
    coordinator.start("--parent-fd", str(read), "--runtime-dir", str(folder), pass_fds=(read,))
    os.close(read)
    os.close(write)
    coordinator.end()
    assert coordinator.process.returncode == 1
    assert not folder.exists()


def test_an_address_that_cannot_be_bound(tmp_path):
    with pytest.raises(RuntimeError, match="did not start"):
        CoordinatorProcess(tmp_path / "none", num_ranks=1)


def test_a_new_one_takes_over(coordinator, sockets):
    cores = sockets.push(coordinator.loads)
    front_end = sockets.subscribe(coordinator.to_front_ends)
    send(cores, CoreLoad(0, 1, 0), CoreLoad(1, 5, 5))
    wait_for_loads(front_end, [(1, 0), (5, 5)])
    coordinator.kill()
    drain(front_end)
    coordinator.start()
    cores = sockets.push(coordinator.loads)
    send(cores, CoreLoad(0, 2, 0), CoreLoad(1, 5, 5))
    # Nothing is published before it knows both.
    assert next_message(front_end, LoadsPublished).loads == [(2, 0), (5, 5)]


def ticks_used(pid):
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


def test_it_uses_no_processor_while_nothing_happens(coordinator, sockets):
    cores = sockets.push(coordinator.loads)
    front_end = sockets.subscribe(coordinator.to_front_ends)
    send(cores, CoreLoad(0, 1, 0), CoreLoad(1, 5, 5))
    wait_for_loads(front_end, [(1, 0), (5, 5)])
    drain(front_end)
    before = ticks_used(coordinator.process.pid)
    assert not front_end.poll(2000)
    assert ticks_used(coordinator.process.pid) - before <= 5  # hundredths of a second; all 200 if it were polling


@pytest.mark.parametrize("arguments", [[], ["--num-ranks", "x"], ["--num", "1"]])
def test_wrong_arguments(arguments):
    command = [sys.executable, "-m", "pelton.engine.coordinator", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert result.returncode == 2
    assert "usage" in result.stderr


reports = st.one_of(
    st.builds(CoreLoad, st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.booleans()),
    st.builds(WaveComplete, st.integers(0, 3)),
)


@given(st.lists(reports, max_size=30))
def test_whoever_runs_is_followed(history):
    """After any history, reports of a core that runs start its wave, unless all others run it too."""
    states = CoreStates(3)
    last = {}
    for report in history:
        start = states.update(report)
        if isinstance(report, WaveComplete):
            assert start is None
            last = {
                rank: (max(wave, report.wave + 1), runs and wave > report.wave) for rank, (wave, runs) in last.items()
            }
            continue
        last[report.rank] = (report.wave, report.is_running)
        if report.is_running:
            needed = any(last.get(rank) != (report.wave, True) for rank in range(3))
            assert start == (StartWave(report.wave) if needed else None)
        elif start is not None:
            assert (start.wave, True) in last.values()
            assert start.wave >= report.wave
    assert states.is_complete is (len(last) == 3)
    summary = states.summary()
    assert summary.is_running is any(runs for _, runs in last.values())
    assert summary.wave == max((wave for wave, _ in last.values()), default=0)


def test_a_core_that_pauses_is_told_when_another_runs():
    states = CoreStates(2)
    assert states.update(CoreLoad(0, 1, 0, 5, True)) == StartWave(5)
    assert states.update(CoreLoad(1, 0, 0, 5, False)) == StartWave(5)
    assert states.update(CoreLoad(1, 0, 0, 6, False)) is None


def test_an_unknown_rank():
    with pytest.raises(ValueError, match="there is no rank 2 among 2"):
        CoreStates(2).update(CoreLoad(2, 0, 0))
