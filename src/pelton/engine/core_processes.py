"""The engine cores that run on this machine."""

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from math import ceil
from time import monotonic

from pelton.engine.child_process import ChildProcess

MAX_RESTARTS = 3
RESTART_WINDOW = 600.0
"""A process that ends more than `MAX_RESTARTS` times within so many seconds is not started again."""
_PAUSES = (0.0, 1.0, 2.0)
"""Seconds until the first, the second and the third restart within the window."""
_STOP_SECONDS = 10.0
"""How long a core may take to end when told to; then it is killed."""


class RestartBudget:
    """How often something may be started again."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def take(self) -> bool:
        """Whether another start is allowed now; it counts then."""
        now = monotonic()
        while self._times and now - self._times[0] > RESTART_WINDOW:
            self._times.popleft()
        if len(self._times) >= MAX_RESTARTS:
            return False
        self._times.append(now)
        return True

    @property
    def pause(self) -> float:
        """Seconds to wait before the start that was allowed last."""
        return _PAUSES[len(self._times) - 1]

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was started again of late."""
        return not self._times


class CoreProcesses:
    """Starts and ends the cores of some ranks, and divides processors and memory among them."""

    def __init__(self, control: str, ranks: Sequence[int], runtime_dir: str, *, progress: bool, log_level: str) -> None:
        """`control`: address of the supervisor. `runtime_dir`: folder of the sockets, to be removed when all ends."""
        self._control = control
        self._ranks = list(ranks)
        self._runtime_dir = runtime_dir
        self._options = ["--progress"] if progress and len(ranks) == 1 else []
        self._options += ["--log-level", log_level]
        self._cpus: list[list[int]] = [[] for _ in ranks] if len(ranks) < 2 else _divide_cpus(len(ranks))
        self.running: dict[int, ChildProcess] = {}
        """By rank."""
        self._due: dict[int, tuple[float, int]] = {}
        """Rank -> when it is to be started, in seconds of the monotonic clock, and its epoch."""
        self._budgets = {rank: RestartBudget() for rank in ranks}

    def start(self, rank: int, epoch: int) -> None:
        cpus = self._cpus[self._ranks.index(rank)]
        self.running[rank] = ChildProcess(
            "pelton.engine.core_proc",
            [
                *("--control", self._control, "--rank", str(rank), "--epoch", str(epoch)),
                *("--num-sharing", str(len(self._ranks)), "--runtime-dir", self._runtime_dir),
                *(("--cpus", ",".join(map(str, cpus))) if cpus else ()),
                *self._options,
            ],
        )

    def may_restart(self, rank: int) -> bool:
        """Whether the rank may be started again; it counts as a start."""
        return self._budgets[rank].take()

    def restart(self, epochs: Mapping[int, int], ended: int) -> None:
        """Start ranks with these epochs, after the pause that the one that has ended must make."""
        due = monotonic() + self._budgets[ended].pause
        for rank, epoch in epochs.items():
            self._due[rank] = (due, epoch)
        self.start_due()

    def start_due(self) -> None:
        """Start ranks whose pause is over."""
        now = monotonic()
        for rank, (due, epoch) in list(self._due.items()):
            if due <= now:
                del self._due[rank]
                self.start(rank, epoch)

    def patience(self, milliseconds: int | None) -> int | None:
        """How long the caller may wait until it calls `start_due`, if it would wait so long."""
        if not self._due:
            return milliseconds
        first = max(0, ceil((min(due for due, _ in self._due.values()) - monotonic()) * 1000))
        return first if milliseconds is None else min(first, milliseconds)

    def is_alive(self, rank: int) -> bool:
        """Whether it runs, or is about to be started."""
        return rank in self.running or rank in self._due

    def take_ended(self) -> list[tuple[int, str]]:
        """Ranks whose process has ended since the last call, and how."""
        ended = [(rank, process) for rank, process in self.running.items() if process.has_ended]
        for rank, process in ended:
            process.close()
            del self.running[rank]
        return [(rank, process.end) for rank, process in ended]

    def kill(self, rank: int) -> None:
        if rank in self.running:
            self.running[rank].kill()

    def end(self, rank: int) -> None:
        """Kill a rank, if it runs, and wait until it has ended. It is not started any more."""
        self._due.pop(rank, None)
        if rank in self.running:
            self.running.pop(rank).destroy()

    def stop(self) -> None:
        """Wait for processes that have been told to end; kill those that do not, or were not told."""
        self._due.clear()
        deadline = monotonic() + _STOP_SECONDS
        for process in self.running.values():
            if not process.wait(max(0.0, deadline - monotonic())):
                print(f"pelton: process {process.pid} does not end and is killed", file=sys.stderr)
            process.destroy()
        self.running.clear()


def _divide_cpus(num_parts: int) -> list[list[int]]:
    from pelton.runner.cpu_count import divide_cpus  # the runner's package loads numpy and all models

    return divide_cpus(num_parts)
