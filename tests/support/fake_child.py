"""Child processes that are played."""

import os
from typing import ClassVar


class FakeChild:
    """A process that ends when the test says so, or when it is killed."""

    made: ClassVar[list["FakeChild"]] = []

    def __init__(self, module, arguments, **options) -> None:
        self.module = module
        self.arguments = list(arguments)
        self.pid = -1
        self.end = "it runs"
        self.has_ended = False
        self._fds = list(os.pipe())
        FakeChild.made.append(self)

    def fileno(self) -> int:
        return self._fds[0]

    def ends(self, how="signal SIGKILL") -> None:
        if not self.has_ended:
            self.ends_unnoticed(how)
            os.close(self._fds.pop())

    kill = ends

    def ends_unnoticed(self, how="signal SIGKILL") -> None:
        """Nobody is woken by it."""
        self.end, self.has_ended = how, True

    def wait(self, timeout) -> bool:
        return self.has_ended

    def close(self) -> None:
        self.ends()
        while self._fds:
            os.close(self._fds.pop())

    destroy = close


def children(module: str) -> list[FakeChild]:
    """Those that run."""
    return [child for child in FakeChild.made if child.module.endswith(module) and not child.has_ended]


def value(child: FakeChild, flag: str) -> int:
    return int(child.arguments[child.arguments.index(flag) + 1])
