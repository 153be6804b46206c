"""Which data-parallel engine core gets a request, from what a front end knows about their load."""

from collections.abc import Iterable, Sequence

_WAITING_WEIGHT = 4
"""A waiting request weighs as much as four that run: it has all its work before it, and it delays those behind it."""


class LoadBalancer:
    """Of one front end, which hears about the load of all ranks now and then, and knows its own requests at once."""

    def __init__(self, num_ranks: int) -> None:
        self._in_flight = [0] * num_ranks
        """Own requests, sent and not finished."""
        self._sent = [0] * num_ranks
        """Own requests sent since the last publication."""
        self._loads: list[tuple[int, int]] | None = None
        """Waiting and running requests of every rank, as published last; None while nobody publishes."""
        self._last = num_ranks - 1

    def choose(self, eligible: Iterable[int]) -> int:
        """The rank of these that has the least to do. Raises ValueError if there is none."""
        ranks = list(eligible)
        if not ranks:
            raise ValueError("no rank is eligible")
        num_ranks = len(self._in_flight)
        return min(
            ranks, key=lambda rank: (self._load(rank), self._in_flight[rank], (rank - self._last - 1) % num_ranks)
        )

    def sent(self, rank: int) -> None:
        """A request went to this rank."""
        self._in_flight[rank] += 1
        self._sent[rank] += 1
        self._last = rank

    def finished(self, rank: int) -> None:
        """A request that went to this rank is over, whatever ended it. Raises ValueError if there is none left."""
        if not self._in_flight[rank]:
            raise ValueError(f"rank {rank} has no request in flight that could finish")
        self._in_flight[rank] -= 1

    def published(self, loads: Sequence[tuple[int, int]]) -> None:
        """Waiting and running requests, of all front ends, for every rank. Raises ValueError on another number."""
        if len(loads) != len(self._in_flight):
            raise ValueError(f"the loads of {len(loads)} ranks were published, not of {len(self._in_flight)}")
        self._loads = list(loads)
        self._sent = [0] * len(self._sent)

    def coordinator_lost(self) -> None:
        """Nobody publishes: own requests are all that is known until somebody does."""
        self._loads = None

    def _load(self, rank: int) -> int:
        in_flight = self._in_flight[rank]
        if self._loads is None:
            return in_flight
        num_waiting, num_running = self._loads[rank]
        # A publication may have overtaken requests on their way, and counts fewer than this front end alone has.
        num_unseen = max(in_flight - num_waiting - num_running, min(self._sent[rank], in_flight))
        return _WAITING_WEIGHT * (num_waiting + num_unseen) + num_running
