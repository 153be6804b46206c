"""Where tokens can be cut into two other tokens."""

from collections.abc import Iterator, Sequence
from itertools import starmap
from operator import add

import numpy as np

from pelton.error_text import shown
from pelton.ops.arrays import Int64, UInt64

_BASE, _INVERSE = 0x9E3779B97F4A7C15, pow(0x9E3779B97F4A7C15, -1, 2**64)
"""A polynomial's variable, odd, and one over it modulo 2**64."""
_CHUNK = 2048
"""Tokens that are looked at together. They may have 1,024 characters each."""
_MOST_LEVELS = 16
"""Gemma's table has 5."""


def cut_tokens(tokens: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All pairs of tokens that make up a token, in the order of these, the shortest left part first; in chunks.

    Parts are looked up by their hashes, and then compared. Raises ValueError for tokens with the same hash, two equal
    ones among them. Gemma's tokens have 1.5 million parts, and 0.6 s are spent on them; to look up strings took 1.0 s.
    """
    if not tokens:
        return
    chunks = [tokens[start : start + _CHUNK] for start in range(0, len(tokens), _CHUNK)]
    table = _Table(np.concatenate([_Text(chunk).whole() for chunk in chunks]))
    if table.alike is not None:
        one, other = (shown(tokens[token_id]) for token_id in table.alike)
        raise ValueError(f"{one} and {other} are two tokens that cannot be told apart")
    objects = np.empty(len(tokens), np.object_)
    objects[:] = tokens
    for chunk in chunks:
        numbers, *hashes = _Text(chunk).parts()
        left, right = map(table.find, hashes)
        found = np.flatnonzero((left >= 0) & (right >= 0))
        pairs = list(zip(objects[left[found]].tolist(), objects[right[found]].tolist(), strict=True))
        cut = [chunk[number] for number in numbers[found].tolist()]
        if list(starmap(add, pairs)) != cut:  # quicker than to compare one by one
            pairs = [pair for pair, token in zip(pairs, cut, strict=True) if add(*pair) == token]
        yield pairs


class _Text:
    """Some tokens, behind one another, and the hashes of all their parts.

    A hash is the sum of the code points times powers of a number, so that of a part is a difference of two sums.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        self._ends: Int64 = np.cumsum(lengths)
        self._starts: Int64 = self._ends - lengths
        points = np.frombuffer("".join(tokens).encode("utf-32-le"), "<u4").astype(np.uint64) + np.uint64(1)
        self._sums = np.zeros(len(points) + 1, np.uint64)
        np.cumsum(points * _powers(_BASE, len(points)), out=self._sums[1:])
        self._inverses = _powers(_INVERSE, len(points) + 1)

    def whole(self) -> UInt64:
        """Hashes of the tokens."""
        return self._between(self._starts, self._ends)

    def parts(self) -> tuple[Int64, UInt64, UInt64]:
        """For every cut of every token: its number, and the hashes of the left and right parts, neither empty."""
        num_cuts = np.maximum(self._ends - self._starts - 1, 0)
        numbers = np.repeat(np.arange(len(num_cuts)), num_cuts)
        starts, ends = self._starts[numbers], self._ends[numbers]
        is_cut = np.ones(len(self._sums), np.bool_)
        is_cut[0] = is_cut[self._ends] = False
        cuts = np.flatnonzero(is_cut)
        return numbers, self._between(starts, cuts), self._between(cuts, ends)

    def _between(self, starts: Int64, ends: Int64) -> UInt64:
        hashes: UInt64 = (self._sums[ends] - self._sums[starts]) * self._inverses[starts]
        return hashes


class _Table:
    """Finds tokens by their hashes, many at a time."""

    alike: tuple[int, int] | None = None
    """Two tokens of one hash, or made for one slot in every level: then the table is of no use."""

    def __init__(self, hashes: UInt64) -> None:
        self._hashes = hashes
        self._levels: list[Int64] = []
        """Token ids by slot. Of tokens that share a slot one is in the first level, the others are in later ones."""
        left = np.arange(len(hashes))
        while len(left):
            level = np.zeros(2 ** (len(left).bit_length() + 3), np.int64)
            slots = _slots(hashes[left], level, len(self._levels))
            level[slots] = left
            self._levels.append(level)
            placed = level[slots]
            is_left = placed != left
            placed, left = placed[is_left], left[is_left]
            is_last = len(self._levels) == _MOST_LEVELS
            alike = np.flatnonzero((hashes[placed] == hashes[left]) | is_last)
            if len(alike):
                one, other = int(placed[alike[0]]), int(left[alike[0]])
                self.alike = min(one, other), max(one, other)
                return

    def find(self, hashes: UInt64) -> Int64:
        """The ids of the tokens that have these hashes; -1 where there is none."""
        found = np.full(len(hashes), -1)
        for number, level in enumerate(self._levels):
            ids = level[_slots(hashes, level, number)]
            found = np.where(self._hashes[ids] == hashes, ids, found)
        return found


def _slots(hashes: UInt64, level: Int64, number: int) -> UInt64:
    mixed = (hashes ^ (hashes >> np.uint64(32 + number))) * np.uint64(_BASE)
    return mixed >> np.uint64(65 - len(level).bit_length())


def _powers(base: int, number: int) -> UInt64:
    """1, base, base**2 ... modulo 2**64."""
    factors = np.full(number, base, np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)
