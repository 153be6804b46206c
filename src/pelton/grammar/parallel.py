"""Advances the constraints of a step on several threads, where that is worth it."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pelton.core.request import ConstraintError, OutputConstraint, advance_in_turn

MIN_SECONDS = 2e-3
"""Of all constraints of a step, one after the other, from which on threads are worth their own time."""

Followed = Sequence[tuple[OutputConstraint, list[int]]]


class ParallelAdvance:
    """An `Advance` that gives the constraints of each group to a thread of their own.

    They wait for each other only for what is done in Python: masks are filled without its lock.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(max(1, num_threads - 1), "pelton-masks")
        self._seconds = 0.0
        """That the last step took, of all threads."""

    def __call__(self, followed: Followed) -> list[list[int] | ConstraintError]:
        shares = self._shares(followed) if self._seconds > MIN_SECONDS else [range(len(followed))]
        own, *others = shares
        futures = [self._threads.submit(_timed, [followed[index] for index in share]) for share in others]
        found = [_timed([followed[index] for index in own]), *(future.result() for future in futures)]
        self._seconds = sum(seconds for _, seconds in found)
        results: list[list[int] | ConstraintError] = [[] for _ in followed]
        for share, (advanced, _) in zip(shares, found, strict=True):
            for index, result in zip(share, advanced, strict=True):
                results[index] = result
        return results

    def shutdown(self) -> None:
        self._threads.shutdown(wait=False)

    def _shares(self, followed: Followed) -> list[Sequence[int]]:
        """Which of them each thread does."""
        shares: dict[int, list[int]] = {}
        for index, (constraint, _) in enumerate(followed):
            shares.setdefault(constraint.group % self._num_threads, []).append(index)
        return list(shares.values())


def _timed(followed: Followed) -> tuple[list[list[int] | ConstraintError], float]:
    """What came of them, and the seconds that they took."""
    start = time.perf_counter()
    return advance_in_turn(followed), time.perf_counter() - start
