"""`pelton serve` as processes of a test."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 60.0


class Served:
    """A server that runs until the context ends, when none of its processes may be left.

    `flags` are those of `pelton serve`, the model first; port 0 is chosen unless they say otherwise.
    """

    def __init__(
        self,
        *flags: str,
        environment: dict[str, str] | None = None,
        ready: str = "Listening at ",
        own_group: bool = False,
        within: Sequence[str] = (),
    ) -> None:
        """`ready`: what it says on standard error when it is. `own_group`: its processes are a group, as a terminal
        would have it. `within`: a command that becomes the one after it."""
        self._ready = ready
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115
        command = [*within, sys.executable, "-m", "pelton", "serve", *flags]
        if not {"--port", "--uds", "--headless"} & set(flags):
            command += ["--port", "0"]
        inherited = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self.process = subprocess.Popen(
            command,
            env={**inherited, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=tempfile.gettempdir(),
            process_group=0 if own_group else None,
        )
        self.pid = self.process.pid

    def __enter__(self) -> "Served":
        try:
            self.wait_for_log(self._ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        before = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the server did not end after SIGTERM: {self.log}") from None
        finally:
            left = wait_until_gone(before)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            log = self.log
            self._log.close()
        assert not left, f"processes outlived the server: {left}: {log}"

    @property
    def log(self) -> str:
        return Path(self._log.name).read_text()

    def wait_for_log(self, text: str, seconds: float = START_SECONDS) -> str:
        """Until standard error has this text; all that it has then."""
        deadline = time.monotonic() + seconds
        while text not in (log := self.log):
            assert self.process.poll() is None, f"the server has ended with {self.process.returncode}: {log}"
            assert time.monotonic() < deadline, f"no {text!r} after {seconds:.0f} s: {log}"
            time.sleep(0.02)
        return log

    @property
    def url(self) -> str:
        found = re.search(r"Listening at (\S+?)(,|$)", self.log, re.MULTILINE)
        assert found is not None, self.log
        return found[1]

    def tree(self) -> dict[int, str]:
        """Process id -> command line, of the server and all that descends from it."""
        parents = {
            pid: parent for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if (parent := _parent(pid))
        }
        found = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return {pid: command for pid in sorted(found) if (command := _command(pid))}

    def children(self, module: str) -> list[int]:
        """Process ids of those that run a module, such as `core_proc`, `coordinator` or `api_process`."""
        return [pid for pid, command in self.tree().items() if f".{module} " in command]

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        return self._answer(urllib.request.Request(self.url + path))

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and parsed JSON; `body` is encoded unless it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        status, text = self._answer(request)
        return status, json.loads(text) if text else None

    def complete(self, prompt: Any, **options: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        status, answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **options})
        assert status == 200, answer
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all lines with these labels; its name without the prefix."""
        status, page = self.get("/metrics")
        assert status == 200, page
        total = 0.0
        for line in page.splitlines():
            if line.startswith(f"vllm:{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    @staticmethod
    def _answer(request: urllib.request.Request) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def wait_until_gone(processes: dict[int, str], seconds: float = 30.0) -> list[int]:
    """Those of the processes that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid, command in processes.items() if _command(pid) == command]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def _parent(pid: int) -> int:
    """0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: int) -> str:
    """Empty if the process is gone, or has ended and waits to be collected."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
