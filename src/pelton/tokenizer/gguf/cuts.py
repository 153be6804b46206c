"""Where tokens can be cut into two other tokens."""

from collections.abc import Iterator, Sequence

import numpy as np

from pelton.ops.arrays import Int64, UInt64

_BASE, _INVERSE = 0x9E3779B97F4A7C15, pow(0x9E3779B97F4A7C15, -1, 2**64)
"""A polynomial's variable, odd, and one over it modulo 2**64."""
_CHUNK = 2048
"""Tokens that are looked at together. They may have 1,024 characters each."""
_MOST_LEVELS = 8


def cut_tokens(tokens: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All pairs of tokens that make up a token, in the order of these, the shortest left part first; in chunks.

    Parts are compared by their hashes, of 64 bits: a wrong pair, or one that is left out, is conceivable. Gemma's
    tokens have 1.5 million parts, and 0.4 s are spent on them; to look up strings took 1.0 s.
    """
    if not tokens:
        return
    chunks = [tokens[start : start + _CHUNK] for start in range(0, len(tokens), _CHUNK)]
    table = _Table(np.concatenate([_Text(chunk).whole() for chunk in chunks]))
    objects = np.empty(len(tokens), np.object_)
    objects[:] = tokens
    for chunk in chunks:
        left, right = map(table.find, _Text(chunk).parts())
        found = np.flatnonzero((left >= 0) & (right >= 0))
        yield list(zip(objects[left[found]].tolist(), objects[right[found]].tolist(), strict=True))


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

    def parts(self) -> tuple[UInt64, UInt64]:
        """Hashes of the left and right parts, neither empty, for every cut of every token."""
        num_cuts = np.maximum(self._ends - self._starts - 1, 0)
        starts, ends = np.repeat(self._starts, num_cuts), np.repeat(self._ends, num_cuts)
        is_cut = np.ones(len(self._sums), np.bool_)
        is_cut[0] = is_cut[self._ends] = False
        cuts = np.flatnonzero(is_cut)
        return self._between(starts, cuts), self._between(cuts, ends)

    def _between(self, starts: Int64, ends: Int64) -> UInt64:
        hashes: UInt64 = (self._sums[ends] - self._sums[starts]) * self._inverses[starts]
        return hashes


class _Table:
    """Finds tokens by their hashes, many at a time."""

    def __init__(self, hashes: UInt64) -> None:
        self._hashes = hashes
        self._levels: list[Int64] = []
        """Token ids by slot. Of tokens that share a slot one is in the first level, the others are in later ones. Only
        tokens of equal hashes share a slot in all of them."""
        left = np.arange(len(hashes))
        while len(left) and len(self._levels) < _MOST_LEVELS:
            level = np.zeros(2 ** (len(left).bit_length() + 3), np.int64)
            slots = _slots(hashes[left], level, len(self._levels))
            level[slots] = left
            self._levels.append(level)
            left = left[level[slots] != left]

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
