"""Processes that never outlive their owner."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pelton.tune.server import OwnedProcess, ProcessError, ServerProcess
from tests.support.served import wait_until_gone
from tests.tune.helpers import REPOSITORY

SECONDS = 60.0
SAYS = "import sys\nfor line in sys.argv[2:]: print(line, flush=True)\nsys.exit(int(sys.argv[1]))\n"
SLEEPS = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
HAS_A_CHILD = (
    "import subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
    'signal.signal(signal.SIGTERM, signal.SIG_IGN); print("ready", flush=True); time.sleep(600)\'])\n'
    "print(child.pid, flush=True)\n"
    "child.wait()\n"
)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a module of this text."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start_module(text, *arguments):
        (tmp_path / "module_under_test.py").write_text(text)
        return OwnedProcess(["module_under_test", *arguments], tmp_path / "output.log")

    return start_module


def wait_for(process, text):
    deadline = time.monotonic() + SECONDS
    while text not in process.said():
        assert time.monotonic() < deadline
        assert process.status is None
        time.sleep(0.02)


def test_it_runs_to_its_end(start):
    with start(SAYS, "0", "one", "two") as process:
        assert process.wait(SECONDS) == 0
        assert process.said() == "one\ntwo\n"
        with pytest.raises(ProcessError, match=r"^module_under_test 0 ended with status 0: two$"):
            process.check_runs()


def test_messages_of_errors_are_what_it_said_last(start):
    with start(SAYS, "2", "pelton: no such model", "", "see --help") as process:
        assert process.wait(SECONDS) == 2
        assert process.last_words() == "no such model"
    with start(SAYS, "3") as process:
        assert process.wait(SECONDS) == 3
        assert process.last_words() == "it said nothing"


def test_it_is_ended(start):
    with start(SLEEPS) as process:
        wait_for(process, "ready")
        process.check_runs()
        with pytest.raises(ProcessError, match=r"has not ended after 0 seconds: ready$"):
            process.wait(0.1)
    assert process.status == -signal.SIGTERM
    assert not Path(f"/proc/{process.pid}").exists()


def test_so_are_children_that_do_not_want_to(start, monkeypatch, capsys):
    monkeypatch.setattr("pelton.tune.server.STOP_SECONDS", 0.5)
    with start(HAS_A_CHILD) as process:
        wait_for(process, "ready")
        child = next(int(line) for line in process.said().split() if line.isdigit())
        command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    assert wait_until_gone({child: command}) == []
    assert "did not end in time and are killed" in capsys.readouterr().err


def test_it_ends_when_its_owner_is_killed(tmp_path):
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom pelton.tune.server import OwnedProcess\n"
        "process = OwnedProcess(['module_under_test'], Path('output.log'))\n"
        "print(process.pid, flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "module_under_test.py").write_text(SLEEPS)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as owner:
        child = int(owner.stdout.readline())
        command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        assert os.getpgid(child) == child
        owner.kill()
    assert wait_until_gone({child: command}, SECONDS) == []


def test_a_server(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    command = ["tests.tune.stand_in", "serve", "surface", "--port", "0"]
    with ServerProcess(command, tmp_path / "server.log") as server:
        server.wait_until_ready(SECONDS)
        assert f"Listening at http://127.0.0.1:{server.port}" in server.said()
        server.forget_prompts()
        server.check_runs()
    message = r"ended with status 1: ValueError: invalid literal for int"
    broken = ServerProcess([*command, "--max-num-seqs", "many"], tmp_path / "server.log")
    with broken as server, pytest.raises(ProcessError, match=message):
        server.wait_until_ready(SECONDS)


def test_the_server_of_another_is_not_taken_for_ours(tmp_path, monkeypatch):
    """Whoever listens at the port that ours was told, ours ends."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    command = ["tests.tune.stand_in", "serve", "surface", "--port"]
    with ServerProcess([*command, "0"], tmp_path / "foreign.log") as foreign:
        foreign.wait_until_ready(SECONDS)
        ours = ServerProcess([*command, str(foreign.port)], tmp_path / "server.log")
        with ours as server, pytest.raises(ProcessError, match="Address already in use"):
            server.wait_until_ready(SECONDS)


def test_a_server_that_is_never_ready(tmp_path, monkeypatch):
    (tmp_path / "module_under_test.py").write_text(SLEEPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sleeping = ServerProcess(["module_under_test"], tmp_path / "server.log")
    with sleeping as server, pytest.raises(ProcessError, match="not ready after 0 seconds"):
        server.wait_until_ready(0.2)
