"""A process of ours that runs one of Pelton's modules and ends when we do."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

_END_SECONDS = 10.0
"""How long the system may take to end a process that is killed."""


class ChildProcess:
    """`python -m module arguments`, with `--parent-fd N`, a pipe that ends when this process does.

    `fileno` becomes readable when it has ended, so that it can be waited for together with sockets.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], *, pass_fds: Sequence[int] = (), config: bytes = b""
    ) -> None:
        """`config` is written to the pipe, after its length in 4 bytes (little endian)."""
        ours, self._ended = os.pipe()
        self._is_over = ours
        theirs, self._life_line = os.pipe()
        # A terminal's Ctrl-C and a service manager's end reach children, too, and may come before they can ignore
        # them: the parent decides.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self._process = subprocess.Popen(
                # -P: the working directory is no place to import from.
                [sys.executable, "-P", "-m", module, *arguments, "--parent-fd", str(theirs)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs, *pass_fds),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(theirs)
        self.pid = self._process.pid
        if config:
            with suppress(BrokenPipeError):  # it has ended already, which is noticed below
                self._send(len(config).to_bytes(4, "little") + config)
        Thread(target=self._wait, name=f"pelton-wait-{self.pid}", daemon=True).start()

    def _send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._life_line, data) :]

    def _wait(self) -> None:
        self._process.wait()
        os.close(self._ended)

    def fileno(self) -> int:
        return self._is_over

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def end(self) -> str:
        """How it ended, for messages."""
        status = self._process.returncode
        if status is None:
            return "it runs"
        ended_by = self.end_signal
        return f"exit status {status}" if ended_by is None else f"signal {ended_by.name}"

    @property
    def end_signal(self) -> signal.Signals | None:
        """What it was ended by; None if it runs, or has ended otherwise."""
        status = self._process.returncode
        return None if status is None or status >= 0 else signal.Signals(-status)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float) -> bool:
        """Whether it ends within so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        return self.has_ended

    def close(self) -> None:
        """After its end, or to make it end: closes the pipes."""
        for fd in (self._life_line, self._is_over):
            with suppress(OSError):
                os.close(fd)

    def destroy(self) -> None:
        """Kill, wait for the end, and close: for what needs no time to end, or has had its time."""
        self.kill()
        self.wait(_END_SECONDS)
        self.close()
