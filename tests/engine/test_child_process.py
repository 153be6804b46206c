"""Child processes tell when they have ended, and end with their parent."""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pelton.engine.child_process import ChildProcess
from tests.support.served import REPOSITORY

MODULE = "tests.support.child_module"
SECONDS = 60.0


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


@contextmanager
def child(*arguments, **options) -> Iterator[ChildProcess]:
    process = ChildProcess(MODULE, [*map(str, arguments)], **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)
        process.close()


def wait_for_end(process: ChildProcess) -> None:
    """As a poller does, beside sockets."""
    ready, _, _ = select.select([process.fileno()], [], [], SECONDS)
    assert ready == [process.fileno()]
    assert process.has_ended


@pytest.mark.parametrize("status", [0, 3])
def test_the_end_can_be_waited_for(status):
    with child("exit", status) as process:
        wait_for_end(process)
        assert process.end == f"exit status {status}"


def test_killing():
    with child("wait", "") as process:
        assert not process.has_ended
        assert process.end == "it runs"
        assert select.select([process.fileno()], [], [], 0) == ([], [], [])
        assert not process.wait(0.001)
        process.kill()
        wait_for_end(process)
        assert process.end == "signal SIGKILL"
        assert process.wait(0)


def test_destroying_waits_for_the_end():
    with child("wait", "") as process:
        process.destroy()
        assert process.end == "signal SIGKILL"
        process.destroy()


def test_closing_ends_it():
    with child("wait", "") as process:
        process.close()
        assert process.wait(SECONDS)
        assert process.end == "exit status 7"


def test_nothing_happens_when_it_is_killed_after_its_end():
    with child("exit", 0) as process:
        wait_for_end(process)
        process.kill()


@pytest.mark.parametrize("size", [1, 65536, 1 << 20])
def test_a_configuration_of_any_size(tmp_path, size):
    config = bytes(range(256)) * (size // 256) or b"x"
    file = tmp_path / "config"
    with child("config", file, config=config) as process:
        process.close()
        assert process.wait(SECONDS)
        assert process.end == "exit status 7"
    assert file.read_bytes() == config


def test_a_child_that_ends_before_it_has_read_its_configuration():
    with child("exit", 5, config=bytes(1 << 20)) as process:
        wait_for_end(process)
        assert process.end == "exit status 5"


def test_files_are_handed_down():
    ours, theirs = os.pipe()
    with child("pass", theirs, pass_fds=[theirs]):
        os.close(theirs)
        with os.fdopen(ours, "rb") as file:
            assert file.read(4) == b"here"


def test_a_child_does_not_keep_the_pipe_of_another_open():
    """Else none would end before all have."""
    with child("wait", "") as first, child("wait", "") as second:
        first.close()
        assert first.wait(SECONDS)
        assert not second.has_ended


def test_no_file_is_left_open():
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not sys.platform.startswith("linux"):
        pytest.skip("the system does not say which files are open")
    before = num_open()
    for _ in range(3):
        with child("exit", 0) as process:
            wait_for_end(process)
    deadline = time.monotonic() + SECONDS
    while num_open() > before:
        assert time.monotonic() < deadline


def test_signals_to_the_group_are_not_for_children():
    """Not even before they can ignore them: they wait, and are never taken."""
    with child("wait", "-") as process:
        status = Path(f"/proc/{process.pid}/status").read_text()
        blocked = int(re.search(r"^SigBlk:\t([0-9a-f]+)$", status, re.MULTILINE)[1], 16)
        assert all(blocked & 1 << number - 1 for number in (signal.SIGINT, signal.SIGTERM))
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, ()), "we still get them"
