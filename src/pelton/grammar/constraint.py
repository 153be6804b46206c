"""One request's constraint: its grammar, its stop tokens, and where the grammar begins."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from pelton.core.messages import ReasoningTokens
from pelton.core.request import ConstraintError
from pelton.error_text import described
from pelton.grammar.backend import GrammarMatcher
from pelton.ops.arrays import UInt32

_ALL = np.uint32(2**32 - 1)
_MAX_FORCED = 16
"""Tokens that are taken at once where no others may follow: each costs a mask, for which all requests wait."""


class GrammarConstraint:
    """Which tokens may come next in one output, after those that `advance` was told of.

    Stop tokens end the output where the grammar is complete, and may not be sampled anywhere else. With `reasoning`,
    the grammar is about what follows the reasoning's end; the output does not stop before that, and as long as it has
    no token it may begin with reasoning.
    """

    def __init__(
        self,
        matcher: GrammarMatcher,
        first_mask: UInt32,
        stop_token_ids: Collection[int],
        *,
        reasoning: ReasoningTokens | None = None,
        can_force: bool = True,
    ) -> None:
        """`first_mask` [ceil(V / 32)] is what the matcher allows at its beginning. `can_force`: whether a token is
        taken without being sampled if no other may follow."""
        self._matcher = matcher
        self._stops = frozenset(stop_token_ids)
        self._stop_bits = _bits(sorted(self._stops), len(first_mask))
        self._reasoning = reasoning
        self._can_force = can_force
        self._num_tokens = 0
        """All that have been taken."""
        self._num_before = 0
        """Those of them before the grammar begins."""
        self._is_open = reasoning is not None and reasoning.is_open
        """Whether the output is in its reasoning."""
        self._is_accepting = False
        """Whether the output may end here, as far as the grammar is concerned."""
        self._mask = first_mask.copy()
        self._finish_mask()
        self._check_can_go_on()

    @property
    def mask(self) -> UInt32:
        """[ceil(V / 32)] what may come next; valid until the next call."""
        return self._mask

    def mask_bytes(self) -> bytes:
        """The same as little-endian words."""
        return self._mask.astype("<u4", copy=False).tobytes()

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow, not even a stop token."""
        return not self._is_open and self._is_accepting and not self._mask.any()

    def advance(self, token_ids: Sequence[int]) -> list[int]:
        """Take the next tokens. Returns those that must follow, for no other may; they are taken, too.

        Raises ConstraintError if the output cannot go on.
        """
        for token_id in token_ids:
            self._take(token_id)
        self._update_mask()
        forced: list[int] = []
        while self._can_force and len(forced) < _MAX_FORCED and (only := self._only_token()) is not None:
            forced.append(only)
            if only in self._stops:
                break
            self._take(only)
            self._update_mask()
        return forced

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens; not beyond where the grammar begins."""
        assert num_tokens <= self._num_tokens - self._num_before, "reasoning is not taken back"
        self._matcher.rollback(num_tokens)
        self._num_tokens -= num_tokens
        self._update_mask()

    def _take(self, token_id: int) -> None:
        reasoning, is_first = self._reasoning, self._num_tokens == 0
        self._num_tokens += 1
        if reasoning is not None and (self._is_open or (is_first and token_id == reasoning.start)):
            self._is_open = token_id != reasoning.end
            self._num_before = self._num_tokens
            return
        with _within_limits():
            is_allowed = self._matcher.accept(token_id)
        if not is_allowed:
            raise ConstraintError(f"the constraint on the output does not allow its token {token_id}")

    def _update_mask(self) -> None:
        if not self._is_open:
            with _within_limits():
                self._matcher.fill_bitmask(self._mask)
        self._finish_mask()
        self._check_can_go_on()

    def _finish_mask(self) -> None:
        """Stop tokens and reasoning, beside what the matcher allows."""
        if self._is_open:
            self._mask.fill(_ALL)
        words, bits = self._stop_bits
        self._mask[words] &= ~bits
        if self._is_open:
            return
        with _within_limits():
            self._is_accepting = self._matcher.is_accepting
        if self._is_accepting:
            self._mask[words] |= bits
        if self._reasoning is not None and not self._num_tokens:
            word, bit = divmod(self._reasoning.start, 32)
            self._mask[word] |= np.uint32(1 << bit)

    def _check_can_go_on(self) -> None:
        if not self._num_tokens and self.is_complete:
            raise ConstraintError(
                "only an output without tokens satisfies the constraint, and none but a stop token can end it; leave "
                "ignore_eos out"
            )
        if not self._mask.any() and not self.is_complete:
            raise ConstraintError(
                "the model has no token with which the output could go on and keep to its constraint; stop tokens "
                "that the constraint needs as text may be the reason"
            )

    def _only_token(self) -> int | None:
        """The one token that may follow; None if there are others, or none."""
        words = np.flatnonzero(self._mask)
        if len(words) != 1:
            return None
        word = int(self._mask[words[0]])
        return int(words[0]) * 32 + word.bit_length() - 1 if word.bit_count() == 1 else None


@contextmanager
def _within_limits() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ConstraintError(f"the constraint on the output is too complex: {error}") from None
    except Exception as error:  # of a library; whatever it is, it concerns one request
        raise ConstraintError(f"the constraint on the output cannot be followed: {described(error)}") from error


def _bits(token_ids: Sequence[int], num_words: int) -> tuple[np.ndarray, UInt32]:
    """The words of a mask that have these tokens, and their bits in there."""
    by_word: dict[int, int] = {}
    for token_id in token_ids:
        if token_id < 32 * num_words:
            word, bit = divmod(token_id, 32)
            by_word[word] = by_word.get(word, 0) | 1 << bit
    return np.array(list(by_word), np.int64), np.array(list(by_word.values()), np.uint32)
