"""A coordinator process, and sockets to talk with it."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import msgspec
import zmq

from pelton.core.dp_messages import LoadsPublished, StartWave

TIMEOUT = 60.0
"""Seconds; the machine may be very busy."""


class CoordinatorProcess:
    """May be ended and started again, at the same addresses."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self.loads = f"ipc://{folder}/loads"
        self.to_front_ends = f"ipc://{folder}/front-ends"
        self.to_cores = f"ipc://{folder}/cores"
        self.num_ranks = num_ranks
        self.process = None
        self.start()

    def start(self, *arguments: str, pass_fds: tuple[int, ...] = ()) -> None:
        """Returns when all addresses are bound."""
        # The address that is bound last.
        socket = Path(self.to_cores.removeprefix("ipc://"))
        socket.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pelton.engine.coordinator", "--num-ranks", str(self.num_ranks)]
        command += ["--loads", self.loads, "--to-front-ends", self.to_front_ends, "--to-cores", self.to_cores]
        self.process = subprocess.Popen([*command, *arguments], pass_fds=pass_fds, stderr=subprocess.PIPE, text=True)
        while not socket.exists():
            if self.process.poll() is not None:
                raise RuntimeError(f"the coordinator did not start: {self.end()}")
            time.sleep(0.005)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> str:
        """Wait for its end, and return what it wrote to the standard error."""
        return self.process.communicate(timeout=TIMEOUT)[1]

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


class Sockets:
    """Of a test; all are closed at its end."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()

    def subscribe(self, address: str) -> zmq.Socket:
        socket = self._open(zmq.SUB)
        socket.subscribe(b"")
        socket.connect(address)
        return socket

    def push(self, address: str) -> zmq.Socket:
        socket = self._open(zmq.PUSH)
        socket.connect(address)
        return socket

    def pull(self, address: str) -> zmq.Socket:
        socket = self._open(zmq.PULL)
        socket.bind(address)
        return socket

    def _open(self, kind: int) -> zmq.Socket:
        self._sockets.append(self._context.socket(kind))
        return self._sockets[-1]


def next_message(socket: zmq.Socket, kind: type[LoadsPublished] | type[StartWave]):
    assert socket.poll(int(TIMEOUT * 1000)), "nothing came"
    return msgspec.msgpack.decode(socket.recv(), type=kind)
