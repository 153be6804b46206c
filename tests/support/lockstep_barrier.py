"""Where the data-parallel ranks of `BlockingExecutor`, in processes of their own, wait for each other."""

import selectors
import socket
import threading
from contextlib import suppress
from typing import NamedTuple


class Round(NamedTuple):
    """What the ranks came with when all had arrived."""

    num_steps: int
    num_dummies: int


class LockstepBarrier:
    """A context manager; processes inherit its `port` as `FAKE_BARRIER_PORT`.

    A rank that dies while it waits has not arrived, and the others wait for its successor.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.rounds: list[Round] = []
        """Grows while the ranks run."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="lockstep-barrier")

    def __enter__(self) -> "LockstepBarrier":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()
        self._listener.close()
        self._woken.close()

    def _serve(self) -> None:
        arrived: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._woken in ready:
                    break
                for found in ready:
                    assert isinstance(found, socket.socket)
                    if found is self._listener:
                        selector.register(found.accept()[0], selectors.EVENT_READ)
                    elif kind := _received(found):
                        arrived[found] = kind
                    else:
                        arrived.pop(found, None)
                        selector.unregister(found)
                        found.close()
                if len(arrived) == self.num_ranks:
                    self._release(arrived)
            for key in list(selector.get_map().values()):
                if key.fileobj not in (self._listener, self._woken):
                    key.fileobj.close()  # type: ignore[union-attr]

    def _release(self, arrived: dict[socket.socket, bytes]) -> None:
        kinds = list(arrived.values())
        self.rounds.append(Round(kinds.count(b"s"), kinds.count(b"d")))
        waiting = list(arrived)
        arrived.clear()
        for connection in waiting:
            with suppress(OSError):  # the rank died; the selector tells
                connection.sendall(b".")


def _received(connection: socket.socket) -> bytes:
    """What a rank sent; nothing if it is gone."""
    try:
        return connection.recv(1)
    except ConnectionError:
        return b""
