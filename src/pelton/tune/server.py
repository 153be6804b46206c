"""Processes that never outlive this one: `pelton serve`, and what puts load on it."""

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from pelton.error_text import one_line

STOP_SECONDS = 20.0
_POLL_SECONDS = 0.05
_TAIL_BYTES = 4000
_LISTENING = re.compile(rb"^Listening at http://127\.0\.0\.1:([0-9]+)$", re.MULTILINE)
"""What a server says when it is ready."""


class ProcessError(Exception):
    """A process has failed; the message says how, with what it said last."""


class RefusedError(ProcessError):
    """The program has ended because of a mistake in what it was asked."""


class OwnedProcess:
    """`python -m MODULE ARGUMENTS`, in a process group of its own: a terminal's Ctrl-C is for its owner, who ends it.

    A context manager, at whose end no process of the group is left. If this process is killed, the module ends at once.
    """

    def __init__(self, command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None) -> None:
        """`command`: the module, and its arguments. What it says goes to the file `output`."""
        self.command = list(command)
        self._output = output
        theirs, self._life_line = os.pipe()
        try:
            with output.open("wb") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "pelton.tune.child", str(theirs), *command],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=(theirs,),
                    process_group=0,
                )
        except BaseException:
            os.close(self._life_line)
            raise
        finally:
            os.close(theirs)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            self._end_group()
        finally:
            os.close(self._life_line)

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def check_runs(self) -> None:
        """Raises ProcessError, with what it says, if it has ended; RefusedError with the exit status 2."""
        if self.status is not None:
            kind = RefusedError if self.status == 2 else ProcessError
            raise kind(f"{' '.join(self.command[:2])} ended with {_end(self.status)}: {self.last_words()}")

    def wait(self, seconds: float) -> int:
        """The exit status. Raises ProcessError if it takes longer."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(
                f"{' '.join(self.command[:2])} has not ended after {seconds:.0f} seconds: {self.last_words()}"
            ) from None

    def said(self) -> str:
        """The end of what it has said."""
        return self._output.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")

    def last_words(self) -> str:
        """The last line that is Pelton's message of an error, or else the last line at all."""
        lines = [line for line in self.said().splitlines() if line.strip()]
        messages = [line.removeprefix("pelton: ") for line in lines if line.startswith("pelton: ")]
        return one_line((messages or lines or ["it said nothing"])[-1])

    def _end_group(self) -> None:
        """Children end by themselves when their parent has; what does not is killed."""
        deadline = time.monotonic() + STOP_SECONDS
        with suppress(ProcessLookupError):  # there is none left
            while self._process.poll() is not None and time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(_POLL_SECONDS)
            print(f"processes of {' '.join(self.command[:2])} did not end in time and are killed", file=sys.stderr)
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


class ServerProcess(OwnedProcess):
    """A server on a port of 127.0.0.1 that the system chooses, so that it can be no other process's.

    It says which when it is ready, and answers GET /health with status 200 then.
    """

    port: int | None = None
    """Known when it is ready; `find_port` may know it before."""

    def wait_until_ready(self, seconds: float) -> None:
        """Raises ProcessError if the server ends, or takes longer."""
        deadline = time.monotonic() + seconds
        while not self._is_ready():
            self.check_runs()
            if time.monotonic() > deadline:
                raise ProcessError(f"the server is not ready after {seconds:.0f} seconds: {self.last_words()}")
            time.sleep(_POLL_SECONDS)

    def forget_prompts(self) -> None:
        """Empty the prefix cache, so that a load that comes again does not find its prompts there.

        Raises ProcessError if the server does not do it within some seconds.
        """
        deadline = time.monotonic() + STOP_SECONDS
        while (status := status_of(self.port, "POST", "/reset_prefix_cache")) != 200:
            self.check_runs()
            if time.monotonic() > deadline:
                raise ProcessError(f"the prefix cache was not emptied: {status or 'no answer'}")
            time.sleep(_POLL_SECONDS)

    def find_port(self) -> int | None:
        """The port, once the server has said it."""
        if self.port is None and (found := _LISTENING.search(self._output.read_bytes())):
            self.port = int(found[1])
        return self.port

    def _is_ready(self) -> bool:
        return self.find_port() is not None and status_of(self.port, "GET", "/health") == 200


def status_of(port: int | None, method: str, path: str) -> int | None:
    """The status that a server on 127.0.0.1 answers with; None if there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _end(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
