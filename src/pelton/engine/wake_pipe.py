"""Wakes a thread that polls."""

import os
from threading import RLock


class WakePipe:
    """`fileno` is readable once for each `wake`, which any thread or signal handler may call, also after `close`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._is_open = True
        # A signal handler may come while its own thread holds it.
        self._lock = RLock()

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        with self._lock:
            if self._is_open:
                os.write(self._write, b"x")

    def take(self) -> None:
        """One `wake`, which there must have been."""
        os.read(self._read, 1)

    def close(self) -> None:
        """By the thread that polls; nobody can be woken any more."""
        with self._lock:
            was_open, self._is_open = self._is_open, False
        if was_open:
            os.close(self._write)
            os.close(self._read)
