"""The API servers that run as processes."""

from collections.abc import Callable, Collection
from logging import getLogger

from pelton.engine.child_process import ChildProcess
from pelton.engine.core_processes import RestartBudget

logger = getLogger(__name__)


class FrontEndProcesses:
    """Starts them, and starts those that end again, a bounded number of times."""

    def __init__(self, start: Callable[[int], ChildProcess], number: int) -> None:
        """Starts them at once. `number`: 0 if the only front end is no process of its own."""
        self._start = start
        self.number = number
        self.running = {index: start(index) for index in range(number)}
        """By index."""
        self._budgets = [RestartBudget() for _ in range(number)]
        self._failures: dict[int, str] = {}
        """Why they cannot start, in their own words."""

    def note_failure(self, index: int, failure: str) -> None:
        if index in self.running:
            self._failures[index] = failure

    def take_ended(self) -> list[tuple[int, str]]:
        """Those that have ended since the last call, and how."""
        ended = [(index, process) for index, process in self.running.items() if process.has_ended]
        for index, process in ended:
            process.close()
            del self.running[index]
        return [(index, process.end) for index, process in ended]

    def replace(self, index: int, end: str) -> str:
        """Start one that has ended again, if that may help. Returns why nobody can serve any more, or empty text."""
        failure = self._failures.pop(index, "")
        budget = self._budgets[index]
        if failure and budget.is_untouched:
            return failure  # it has not started even once
        if not failure and budget.take():
            logger.error("API server process %d has ended (%s), and is started again", index, end)
            self.running[index] = self._start(index)
            return ""
        if not self.running:
            return failure or f"every API server process has ended ({end})"
        logger.error("API server process %d has ended (%s) for good", index, failure or end)
        return ""

    def kill_but(self, kept: Collection[int]) -> None:
        """Kill all others."""
        for index, process in self.running.items():
            if index not in kept:
                process.kill()

    def end(self) -> None:
        """End those that have had their time."""
        for process in self.running.values():
            process.destroy()
        self.running.clear()
