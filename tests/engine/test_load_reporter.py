"""What a core says reaches the coordinator, is repeated while there is work, and costs nothing otherwise."""

import time

import msgspec
import pytest

from pelton.core.dp_messages import CoreLoad, WaveComplete
from pelton.engine.load_reporter import REPEAT_INTERVAL, LoadReporter
from tests.support.coordinator import TIMEOUT, Sockets

decode = msgspec.msgpack.Decoder(CoreLoad | WaveComplete).decode


@pytest.fixture
def pull(tmp_path):
    with Sockets() as sockets:
        yield sockets.pull(f"ipc://{tmp_path}/loads")


@pytest.fixture
def reporter(tmp_path):
    reporter = LoadReporter(3, f"ipc://{tmp_path}/loads")
    yield reporter
    reporter.close()


def receive(socket):
    assert socket.poll(int(TIMEOUT * 1000)), "nothing came"
    return decode(socket.recv())


def test_first_report_and_silence_of_an_idle_core(pull, reporter):
    reporter.report(0, 0)
    assert receive(pull) == CoreLoad(3, 0, 0)
    reporter.report(0, 0)
    assert not pull.poll(int(1500 * REPEAT_INTERVAL))


@pytest.mark.parametrize("load", [(1, 0, 0, False), (0, 2, 0, False), (0, 0, 7, True)])
def test_work_is_repeated(pull, reporter, load):
    reporter.report(*load)
    assert [receive(pull) for _ in range(3)] == [CoreLoad(3, *load)] * 3


def test_many_changes_become_few_reports(pull, reporter):
    end = 0
    start = time.monotonic()
    while time.monotonic() - start < 1:
        end += 1
        reporter.report(end, 1)
    received = []
    while not received or received[-1].num_waiting < end:
        received.append(receive(pull))
    assert received == sorted(received, key=lambda load: load.num_waiting)
    assert len(received) < end / 2
    assert len(received) < 100


def test_the_end_of_a_wave_comes_before_the_next_state(pull, reporter):
    reporter.report(0, 0, 4, True)
    assert receive(pull) == CoreLoad(3, 0, 0, 4, True)
    reporter.wave_complete(4)
    reporter.report(0, 0, 5, False)
    received = []
    while CoreLoad(3, 0, 0, 5, False) not in received:
        received.append(receive(pull))
    assert received.count(WaveComplete(4)) == 1
    assert received.index(WaveComplete(4)) < received.index(CoreLoad(3, 0, 0, 5, False))


def test_a_coordinator_that_comes_late_hears_the_last_state(tmp_path):
    reporter = LoadReporter(0, f"ipc://{tmp_path}/loads")
    for number in range(100):
        reporter.report(0, 0, number, True)
        reporter.wave_complete(number)
        time.sleep(0.001)
    reporter.report(0, 0, 100, False)
    with Sockets() as sockets:
        pull = sockets.pull(f"ipc://{tmp_path}/loads")
        while receive(pull) != CoreLoad(0, 0, 0, 100, False):
            pass
        reporter.close()


def test_close_does_not_wait_for_a_coordinator(tmp_path):
    reporter = LoadReporter(0, f"ipc://{tmp_path}/loads")
    reporter.report(1, 1)
    reporter.close()
