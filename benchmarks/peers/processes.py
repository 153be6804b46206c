"""An engine's process, with all that it starts: bounded in time, and ended by its id."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

from engines import UnavailableError, error_line

STOP_SECONDS = 15.0


class EngineProcess:
    """It leads a process group of its own, so that nothing of it is left at the end."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], *, reads_rows: bool) -> None:
        self.said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if reads_rows else self.said,
            stderr=self.said,
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
        if self.process.wait():
            raise UnavailableError(self.why_it_ended())
        return None

    def why_it_ended(self) -> str:
        """Its last words that tell of an error."""
        status = self.process.returncode
        ending = f"ended by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return f"{ending}: {error_line(self.output())}"

    def output(self) -> str:
        self.said.seek(0)
        return self.said.read().decode(errors="replace")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._end_group()
        self.said.close()

    def _end_group(self) -> None:
        """What it left behind."""
        deadline = time.monotonic() + STOP_SECONDS
        with_signal = signal.SIGTERM
        try:
            while True:
                os.killpg(self.process.pid, with_signal)
                time.sleep(0.1)
                if time.monotonic() > deadline:
                    with_signal = signal.SIGKILL
        except ProcessLookupError:
            pass


@contextmanager
def running(command: Sequence[str], variables: Mapping[str, str], *, reads_rows: bool) -> Iterator[EngineProcess]:
    process = EngineProcess(command, variables, reads_rows=reads_rows)
    try:
        yield process
    finally:
        process.stop()
