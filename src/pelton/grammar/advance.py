"""Takes the new tokens of many outputs at once."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pelton.core.request import Advanced, ConstraintError, OutputConstraint

_LEAST_PER_THREAD = 4
"""Fewer are done before another thread has woken up."""

Entry = tuple[OutputConstraint, Sequence[int]]
"""A constraint, and the new tokens of its output."""


class ParallelAdvance:
    """Advances constraints on several threads, while the kernels' own have nothing to do: backends fill masks without
    Python's lock."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, entries: Sequence[Entry]) -> list[Advanced]:
        """The tokens that must follow, or why the output cannot go on, for each in order."""
        num_parts = min(self._num_threads, len(entries) // _LEAST_PER_THREAD)
        if num_parts < 2:
            return advance_in_turn(entries)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads - 1, "pelton-masks")
        # Every so many-th: neighbours often have the same constraint.
        parts = [entries[first::num_parts] for first in range(num_parts)]
        others = [self._pool.submit(advance_in_turn, part) for part in parts[1:]]
        advanced: list[Advanced] = [[]] * len(entries)
        advanced[::num_parts] = advance_in_turn(parts[0])
        for first, other in enumerate(others, 1):
            advanced[first::num_parts] = other.result()
        return advanced


def advance_in_turn(entries: Sequence[Entry]) -> list[Advanced]:
    return [_advance(constraint, token_ids) for constraint, token_ids in entries]


def _advance(constraint: OutputConstraint, token_ids: Sequence[int]) -> Advanced:
    try:
        return constraint.advance(token_ids)
    except ConstraintError as error:
        return error
