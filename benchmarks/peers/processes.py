"""An engine's process, with all that it starts: bounded in time, and ended by its id, whatever ends this process."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

from engines import UnavailableError, error_line

STOP_SECONDS = 15.0
KILL_SECONDS = 5.0
_GUARD = 'read -r done || kill -s KILL -- "-$0"'
"""Waits for a line that says that all is done. If this process ends before, it kills the engine's group."""


class EngineProcess:
    """It leads a process group of its own, so that nothing of it is left at the end.

    A second process, in another group, guards it: killed, this process leaves no engine behind.
    """

    def __init__(
        self, command: Sequence[str], variables: Mapping[str, str], said: IO[bytes], *, reads_rows: bool
    ) -> None:
        """What it says goes to the file `said`; its rows are read if it is a worker (workloads.py)."""
        self._said = said
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if reads_rows else said,
            stderr=said,
            start_new_session=True,
        )
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(self.process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        if self.process.stdout is not None:
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()

    def _read(self, rows: IO[bytes]) -> None:
        with rows:
            for line in rows:
                self._lines.put(line)
        self._lines.put(None)

    def next_row(self, seconds: float) -> dict[str, Any] | None:
        """What its next line of JSON says; None at its end. Raises UnavailableError if it takes longer, or fails."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise UnavailableError(f"not done within {seconds:.0f} s") from None
        if line is not None:
            return dict(json.loads(line))
        if self.wait(STOP_SECONDS):
            raise UnavailableError(self.why_it_ended())
        return None

    def wait(self, seconds: float) -> int:
        """Its exit status. Raises UnavailableError if it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"it has not ended within {seconds:.0f} s") from None

    def why_it_ended(self) -> str:
        """Its last words that tell of an error."""
        status = self.process.returncode
        ending = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{ending}: {error_line(self.output())}"

    def output(self) -> str:
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    def stop(self) -> None:
        """It, and then what it left behind."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        if not (self._group_ends(signal.SIGTERM, STOP_SECONDS) or self._group_ends(signal.SIGKILL, KILL_SECONDS)):
            print(f"processes of group {self.process.pid} do not end", file=sys.stderr)
        self._guard.communicate(b"done\n")

    def _group_ends(self, number: signal.Signals, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        try:
            os.killpg(self.process.pid, number)
            while time.monotonic() < deadline:
                self.process.poll()
                os.killpg(self.process.pid, 0)
                time.sleep(0.05)
        except ProcessLookupError:
            return True
        return False


@contextmanager
def running(command: Sequence[str], variables: Mapping[str, str], *, reads_rows: bool) -> Iterator[EngineProcess]:
    """Raises UnavailableError if it cannot start."""
    with tempfile.TemporaryFile() as said:
        try:
            process = EngineProcess(command, variables, said, reads_rows=reads_rows)
        except OSError as error:
            raise UnavailableError(f"{command[0]} does not start: {error.strerror}") from None
        try:
            yield process
        finally:
            process.stop()
