"""Collects the figures of all front ends for one that asks."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic

from pelton.core.control_messages import FromSupervisor, MetricsCall, MetricsReply, MetricsState

PATIENCE = 2.0
"""Seconds that front ends may take to tell their figures; those that take longer are left out."""


@dataclass
class _Collection:
    asker: bytes
    call_id: int
    awaited: set[bytes]
    deadline: float
    states: list[MetricsState] = field(default_factory=list)


class MetricsCollector:
    """Knows front ends by the identities of their control sockets."""

    def __init__(self, send: Callable[[bytes, FromSupervisor], object]) -> None:
        self._send = send
        self._open: dict[int, _Collection] = {}
        self._num_calls = 0

    def collect(self, asker: bytes, call_id: int, front_ends: Collection[bytes]) -> None:
        """Ask all of them, and answer the call once all have replied."""
        self._num_calls += 1
        self._open[self._num_calls] = _Collection(asker, call_id, set(front_ends), monotonic() + PATIENCE)
        for identity in front_ends:
            self._send(identity, MetricsCall(self._num_calls))

    def take(self, identity: bytes, reply: MetricsReply) -> None:
        """What one of them replied."""
        collection = self._open.get(reply.call_id)
        if collection is not None and identity in collection.awaited:
            collection.states += reply.states
            self._finish(reply.call_id, identity)

    def forget(self, identity: bytes) -> None:
        """Wait for this front end no more."""
        for number, collection in list(self._open.items()):
            if identity in collection.awaited:
                self._finish(number, identity)

    def look_at_the_clock(self) -> None:
        """Answer calls without those that take too long."""
        now = monotonic()
        for number, collection in list(self._open.items()):
            if now > collection.deadline:
                self._answer(number)

    @property
    def is_waiting(self) -> bool:
        return bool(self._open)

    def _finish(self, number: int, identity: bytes) -> None:
        awaited = self._open[number].awaited
        awaited.remove(identity)
        if not awaited:
            self._answer(number)

    def _answer(self, number: int) -> None:
        collection = self._open.pop(number)
        self._send(collection.asker, MetricsReply(collection.call_id, collection.states))
