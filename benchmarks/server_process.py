"""`pelton serve` as a process of a benchmark, with all its children: start, processor time, end."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
START_SECONDS = 120.0
STOP_SECONDS = 20.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class ServerProcess:
    """A context manager. At its end no process of the server is left."""

    def __init__(self, model: str, *flags: str) -> None:
        self.port = free_port()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._command = [sys.executable, "-m", "pelton", "serve", model, "--port", str(self.port), *flags]
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(
            [*self._command, "--host", "127.0.0.1"],
            env=environment | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
        )

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        processes = self._processes()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"the server did not end within {STOP_SECONDS:.0f} seconds of SIGTERM", file=sys.stderr)
            self._process.kill()
            self._process.wait()
        self._end_children(processes)
        self._errors.close()

    def wait_until_ready(self) -> None:
        """Until /health is well. Raises RuntimeError, with what the server says, if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_healthy():
            self.check_runs()
            if time.monotonic() > deadline:
                raise RuntimeError(f"not ready after {START_SECONDS:.0f} seconds: {self._said()}")
            time.sleep(0.05)

    def check_runs(self) -> None:
        """Raises RuntimeError, with what the server says, if it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{' '.join(self._command)} gave {self._process.returncode}: {self._said()}")

    def processor_seconds(self) -> float:
        """User and system, of all processes that live, since they began."""
        return sum(_processor_ticks(pid) for pid in self._processes()) / _TICKS_PER_SECOND

    @property
    def num_processes(self) -> int:
        return len(self._processes())

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def _processes(self) -> dict[int, int]:
        """The server and what descends from it: process id -> when it began, in ticks."""
        parents = {pid: fields for pid in _all_pids() if (fields := _stat(pid))}
        found = {self._process.pid}
        while more := {pid for pid, fields in parents.items() if int(fields[1]) in found} - found:
            found |= more
        return {pid: int(parents[pid][19]) for pid in found if pid in parents}

    def _end_children(self, processes: dict[int, int]) -> None:
        """They end by themselves when their parent has."""
        deadline = time.monotonic() + STOP_SECONDS
        while left := [pid for pid, began in processes.items() if _lives(pid, began)]:
            if time.monotonic() > deadline:
                print(f"{len(left)} processes outlived the server and are killed", file=sys.stderr)
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.02)


def _all_pids() -> Sequence[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _processor_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def _lives(pid: int, began: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and int(fields[19]) == began and fields[0] != "Z"
