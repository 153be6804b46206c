"""The signals by which users and service managers end programs: SIGINT (Ctrl-C) and SIGTERM."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_signals_handled(handle: Callable[[int], object]) -> Iterator[None]:
    """Within this context, `handle` is called with the number of each. For the main thread."""

    def handler(number: int, frame: FrameType | None) -> None:
        handle(number)

    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def ignore_ending_signals() -> None:
    """For child processes. A terminal's Ctrl-C and a service manager's end reach the whole group; the parent decides
    when its children end."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
