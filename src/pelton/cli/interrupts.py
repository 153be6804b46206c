"""Ctrl-C as a wish that is looked at, instead of an exception at any moment."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_interrupt_noted() -> Iterator[Callable[[], bool]]:
    """Within this context, the first interrupt makes the function true that it gives; the next one is raised."""
    num_interrupts = 0

    def note(signal_number: int, frame: FrameType | None) -> None:
        nonlocal num_interrupts
        num_interrupts += 1
        if num_interrupts > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: num_interrupts > 0
    finally:
        signal.signal(signal.SIGINT, before)
