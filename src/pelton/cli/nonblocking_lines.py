"""Lines of a file, a pipe or a terminal, without waiting for those that are not there yet."""

import asyncio
import os
import select
import stat
from collections.abc import AsyncIterator

from pelton.cli.messages import system_errors_of

MAX_LINE_BYTES = 32 << 20
"""As large as the body of a request may be."""
_PIECE = 1 << 16


class NonblockingLines:
    """Reads a file descriptor, which it does not close. Holds no more than the line it is reading and one piece.

    Of a line longer than `max_line_bytes`, only its first `max_line_bytes + 1` bytes come, and the rest is skipped:
    who takes it can tell, and refuse it. An OSError has the `name`, and so have messages about it.
    """

    def __init__(self, descriptor: int, name: str, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._descriptor = descriptor
        self._name = name
        self._buffer = bytearray()
        self._num_searched = 0
        self._has_ended = False

    @property
    def num_bytes(self) -> int | None:
        """Of a file; None of what has no size, such as a pipe or a terminal."""
        status = os.fstat(self._descriptor)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read_line(self, *, wait: bool) -> bytes | None:
        """The next line, without its end; None at the end, and if there is none yet and `wait` is False."""
        while (end := self._buffer.find(b"\n", self._num_searched)) < 0:
            if len(self._buffer) > self.max_line_bytes:
                del self._buffer[self.max_line_bytes + 1 :]
            self._num_searched = len(self._buffer)
            if self._has_ended:
                return self._take(len(self._buffer)) if self._buffer else None
            with system_errors_of(self._name):
                if not wait and not select.select([self._descriptor], [], [], 0)[0]:
                    return None
                piece = os.read(self._descriptor, _PIECE)
            self._buffer += piece
            self._has_ended = not piece
        return self._take(end)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """All lines, without holding up the event loop while there is none."""
        while not (self._has_ended and not self._buffer):
            if (line := self.read_line(wait=False)) is not None:
                yield line
            elif not self._has_ended:
                await self._until_readable()

    async def _until_readable(self) -> None:
        """Of a pipe or a terminal: files are always readable."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)

    def _take(self, length: int) -> bytes:
        line = bytes(self._buffer[: min(length, self.max_line_bytes + 1)])
        del self._buffer[: length + 1]
        self._num_searched = 0
        return line
