"""What a data-parallel engine core tells the coordinator."""

import threading
import time
from collections import deque

import msgspec
import zmq

from pelton.core.dp_messages import CoreLoad, WaveComplete

REPEAT_INTERVAL = 1.0
"""Seconds between reports of a core with work, so that a coordinator that was restarted learns of it, and a start of
a wave that got lost is repeated."""
_CHANGE_INTERVAL = 0.05
"""Seconds between reports of changes that nobody waits for."""
_MAX_QUEUED = 16
"""Messages kept for a coordinator that is away. All are sent again anyway, or of no use later."""


class LoadReporter:
    """Reports from a thread of its own: a core that waits for other ranks in the middle of a step must go on
    repeating that it has work, or they may never hear of it."""

    def __init__(self, rank: int, address: str) -> None:
        self._rank = rank
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.linger = 0
        self._socket.sndhwm = _MAX_QUEUED
        self._socket.connect(address)
        self._condition = threading.Condition()
        self._load: CoreLoad | None = None
        self._completed: deque[WaveComplete] = deque(maxlen=_MAX_QUEUED)
        self._due: float | None = None
        """When to report next, in seconds of the monotonic clock; None if there is nothing to say."""
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="load-reporter", daemon=True)
        self._thread.start()

    def report(self, num_waiting: int, num_running: int, wave: int = 0, is_running: bool = False) -> None:
        """Say how much is to do, and where the core stands in lockstep. Cheap if nothing has changed."""
        load = CoreLoad(self._rank, num_waiting, num_running, wave, is_running)
        last = self._load
        if load == last:
            return
        is_urgent = (
            last is None or (wave, is_running) != (last.wave, last.is_running) or _is_busy(load) != _is_busy(last)
        )
        with self._condition:
            self._load = load
            self._schedule(time.monotonic() + (0.0 if is_urgent else _CHANGE_INTERVAL))

    def wave_complete(self, wave: int) -> None:
        """Say that all ranks agreed to end this wave."""
        with self._condition:
            self._completed.append(WaveComplete(wave))
            self._schedule(time.monotonic())

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join()
        self._socket.close()
        self._context.term()

    def _schedule(self, due: float) -> None:
        if self._due is None or due < self._due:
            self._due = due
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._is_closed and (self._due is None or self._due > time.monotonic()):
                    self._condition.wait(None if self._due is None else self._due - time.monotonic())
                if self._is_closed:
                    return
                load = self._load
                completed = list(self._completed)
                self._completed.clear()
                self._due = time.monotonic() + REPEAT_INTERVAL if load is not None and _is_busy(load) else None
            messages: list[CoreLoad | WaveComplete] = [*completed, *([load] if load is not None else [])]
            if not self._send(messages):
                with self._condition:
                    self._schedule(time.monotonic() + REPEAT_INTERVAL)

    def _send(self, messages: list[CoreLoad | WaveComplete]) -> bool:
        """False if the coordinator has been away for so long that no more fits into the queue."""
        try:
            for message in messages:
                self._socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


def _is_busy(load: CoreLoad) -> bool:
    return load.is_running or load.num_waiting + load.num_running > 0
