"""`pelton serve` as a process of a benchmark, with all its children: start, processor time, end."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pelton.tune import server

REPOSITORY = Path(__file__).parents[1]
START_SECONDS = 120.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ServerProcess(server.ServerProcess):
    """A context manager. At its end no process of the server is left."""

    def __init__(self, model: str, *flags: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        super().__init__(
            ["pelton", "serve", model, "--port", "0", *flags, "--host", "127.0.0.1"],
            Path(self._folder.name) / "server.log",
            environment | {"PYTHONPATH": path},
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._folder.cleanup()

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        super().wait_until_ready(seconds)

    def processor_seconds(self) -> float:
        """User and system, of all processes that live, since they began."""
        return sum(_processor_ticks(pid) for pid in self._processes()) / _TICKS_PER_SECOND

    @property
    def num_processes(self) -> int:
        return len(self._processes())

    def _processes(self) -> set[int]:
        """The server and what descends from it."""
        parents = {pid: int(fields[1]) for pid in _all_pids() if (fields := _stat(pid))}
        found = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found


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
