"""Collects the figures of all front ends for one that asks."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import monotonic

import msgspec

from pelton.core.control_messages import FromSupervisor, MetricsCall, MetricsReply, MetricsState
from pelton.core.messages import EngineStats
from pelton.engine.metrics import merged

PATIENCE = 2.0
"""Seconds that front ends may take to tell their figures; of those that take longer the last ones known count."""


@dataclass
class _Collection:
    asker: bytes
    call_id: int
    awaited: set[bytes]
    deadline: float


class MetricsCollector:
    """Knows front ends by the identities of their control sockets. What it answers never counts less than before."""

    def __init__(self, send: Callable[[bytes, FromSupervisor], bool]) -> None:
        """`send`: returns whether there is a connection."""
        self._send = send
        self._open: dict[int, _Collection] = {}
        self._num_calls = 0
        self._last: dict[bytes, list[MetricsState]] = {}
        """What front ends replied last; nothing if they have been asked only."""
        self._past: list[MetricsState] = []
        """The sums of front ends that have ended."""

    def collect(self, asker: bytes, call_id: int, front_ends: Collection[bytes]) -> list[bytes]:
        """Ask all of them, and answer the call once all have replied. Returns those that are gone."""
        self._num_calls += 1
        number = self._num_calls
        reached = [identity for identity in front_ends if self._send(identity, MetricsCall(number))]
        for identity in reached:
            self._last.setdefault(identity, [])
        self._open[number] = _Collection(asker, call_id, set(reached), monotonic() + PATIENCE)
        if not reached:
            self._answer(number)
        return [identity for identity in front_ends if identity not in reached]

    def take(self, identity: bytes, reply: MetricsReply) -> None:
        """What one of them replied, maybe too late for that call."""
        if identity not in self._last:
            return
        self._last[identity] = reply.states
        collection = self._open.get(reply.call_id)
        if collection is not None and identity in collection.awaited:
            self._finish(reply.call_id, identity)

    def forget(self, identity: bytes) -> None:
        """This front end has ended."""
        # What it knew of running requests is over.
        ended = [msgspec.structs.replace(state, stats=_at_rest(state.stats)) for state in self._last.pop(identity, [])]
        self._past = merged([*self._past, *ended])
        for number, collection in list(self._open.items()):
            if identity in collection.awaited:
                self._finish(number, identity)

    def look_at_the_clock(self) -> None:
        """Answer calls without waiting longer for those that take too long."""
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
        states = [state for each in self._last.values() for state in each] + self._past
        self._send(collection.asker, MetricsReply(collection.call_id, states))


def _at_rest(stats: EngineStats | None) -> EngineStats | None:
    """The core's counters of that time, and no requests."""
    return stats and msgspec.structs.replace(stats, num_running=0, num_waiting=0, kv_cache_usage=0.0)
