"""A matcher for a finite set of token sequences, for what is built on matchers."""

from collections.abc import Iterable, Sequence

import numpy as np

from pelton.grammar.backend import CompiledGrammar, GrammarMatcher

VOCAB_SIZE = 70
NUM_WORDS = 3


class PlayedMatcher(GrammarMatcher):
    """Allows the sequences that it is given. It notes what it is asked."""

    def __init__(self, sequences: Iterable[Sequence[int]], fails_at: int | None = None) -> None:
        """`fails_at`: number of tokens after which it exceeds its limits."""
        self.sequences = {tuple(sequence) for sequence in sequences}
        self.taken: tuple[int, ...] = ()
        self._fails_at = fails_at

    def fill_bitmask(self, row) -> None:
        if len(self.taken) == self._fails_at:
            raise RuntimeError("too many states")
        row.fill(0)
        for token_id in self._next():
            row[token_id // 32] |= np.uint32(1 << token_id % 32)

    def accept(self, token_id: int) -> bool:
        if token_id not in self._next():
            return False
        self.taken += (token_id,)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens <= len(self.taken)
        self.taken = self.taken[: len(self.taken) - num_tokens]

    @property
    def is_accepting(self) -> bool:
        return self.taken in self.sequences

    def _next(self) -> set[int]:
        length = len(self.taken)
        return {s[length] for s in self.sequences if len(s) > length and s[:length] == self.taken}


class PlayedGrammar(CompiledGrammar):
    def __init__(self, sequences: Iterable[Sequence[int]], fails_at: int | None = None) -> None:
        self.sequences = [tuple(sequence) for sequence in sequences]
        self.num_matchers = 0
        """That were made."""
        self._fails_at = fails_at

    @property
    def num_bytes(self) -> int:
        return 1

    def new_matcher(self) -> PlayedMatcher:
        self.num_matchers += 1
        return PlayedMatcher(self.sequences, self._fails_at)


def mask_of(token_ids: Iterable[int]) -> np.ndarray:
    mask = np.zeros(NUM_WORDS, np.uint32)
    for token_id in token_ids:
        mask[token_id // 32] |= np.uint32(1 << token_id % 32)
    return mask


def tokens_of(mask: np.ndarray) -> set[int]:
    return {token_id for token_id in range(32 * len(mask)) if mask[token_id // 32] >> np.uint32(token_id % 32) & 1}
