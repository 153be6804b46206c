"""One request's constraint: its grammar, its stop tokens, and where the grammar begins."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pelton.core.messages import ReasoningTokens
from pelton.core.request import ConstraintError
from pelton.error_text import described
from pelton.grammar.backend import CompiledGrammar, GrammarMatcher
from pelton.ops.arrays import UInt32

_ALL = np.uint32(2**32 - 1)
_MAX_FORCED = 16
"""Tokens that are taken at once where no others may follow: each costs a mask, for which all requests wait."""


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """A grammar, and where each output begins in it."""

    grammar: CompiledGrammar
    first_mask: UInt32
    """[ceil(V / 32)] what may come first."""
    shortened: UInt32
    """[ceil(V / 32)] tokens that would not be what the grammar takes them for, if the whole output began with them."""
    accepts_empty: bool
    """Whether an output without tokens is complete."""

    @classmethod
    def of(cls, grammar: CompiledGrammar, num_words: int, shortened_ids: Sequence[int] = ()) -> "CompiledConstraint":
        matcher, first_mask, shortened = grammar.new_matcher(), *np.zeros((2, num_words), np.uint32)
        matcher.fill_bitmask(first_mask)
        words, bits = _bits(shortened_ids, num_words)
        shortened[words] = bits
        return cls(grammar, first_mask, shortened, matcher.is_accepting)


class GrammarConstraint:
    """Which tokens may come next in one output, after those that `advance` was told of.

    Stop tokens end the output where the grammar is complete, and may not be sampled anywhere else. With `reasoning`,
    the grammar is about what follows the reasoning's end; the output does not stop before that, and as long as it has
    no token it may begin with reasoning.
    """

    def __init__(
        self,
        compiled: CompiledConstraint,
        stop_token_ids: Collection[int],
        *,
        reasoning: ReasoningTokens | None = None,
        can_force: bool = True,
    ) -> None:
        """`can_force`: whether a token is taken without being sampled if no other may follow."""
        self._compiled = compiled
        self._matcher: GrammarMatcher | None = None
        """Made when it is first needed: requests that wait for their turn do not hold one."""
        self._stops = frozenset(stop_token_ids)
        self._stop_words, self._stop_bits = _bits(sorted(self._stops), len(compiled.first_mask))
        self._other_bits = ~self._stop_bits
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
        self._mask = compiled.first_mask.copy()
        self._must_end = False
        self._num_words = 0
        """Of the mask that allow a token."""
        with _within_limits():
            self._finish_mask()

    def mask_bytes(self) -> bytes:
        """[ceil(V / 32)] what may come next, as little-endian words."""
        return self._mask.astype("<u4", copy=False).tobytes()

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow, not even a stop token."""
        return not self._num_words and self._is_accepting and not self._is_open

    @property
    def group(self) -> int:
        """Those of different groups can be advanced at the same time."""
        return 0 if self._matcher is None else self._matcher.group

    @property
    def must_end(self) -> bool:
        """Whether nothing but stop tokens may follow, if they may."""
        return self._must_end

    def advance(self, token_ids: Sequence[int]) -> list[int]:
        """Take the next tokens. Returns those that must follow, for no other may; they are taken, too.

        Raises ConstraintError if the output cannot go on.
        """
        forced: list[int] = []
        with _within_limits():
            for token_id in token_ids:
                self._take(token_id)
            self._update_mask()
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
        with _within_limits():
            if self._matcher is not None:
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
        if self._matcher is None:
            self._matcher = self._compiled.grammar.new_matcher()
        if not self._matcher.accept(token_id):
            raise ConstraintError(f"the constraint on the output does not allow its token {token_id}")

    def _update_mask(self) -> None:
        if self._matcher is not None:
            self._matcher.fill_bitmask(self._mask)
        elif not self._is_open:
            self._mask[:] = self._compiled.first_mask
        self._finish_mask()

    def _finish_mask(self) -> None:
        """Stop tokens and reasoning, beside what the matcher allows."""
        if not self._num_tokens:
            self._mask &= ~self._compiled.shortened
        if self._is_open:
            self._mask.fill(_ALL)
            self._is_accepting = False
        else:
            matcher = self._matcher
            self._is_accepting = self._compiled.accepts_empty if matcher is None else matcher.is_accepting
        self._mask[self._stop_words] &= self._other_bits
        self._must_end = False
        if self._is_accepting:
            self._must_end = not np.count_nonzero(self._mask)
            self._mask[self._stop_words] |= self._stop_bits
        if self._reasoning is not None and not self._num_tokens and not self._is_open:
            word, bit = divmod(self._reasoning.start, 32)
            self._mask[word] |= np.uint32(1 << bit)
        self._num_words = int(np.count_nonzero(self._mask))
        self._check_can_go_on()

    def _check_can_go_on(self) -> None:
        if not self._num_tokens and self.is_complete:
            raise ConstraintError(
                "only an output without tokens satisfies the constraint, and none but a stop token can end it; leave "
                "ignore_eos out"
            )
        if not self._num_words and not self._is_accepting:
            raise ConstraintError(
                "the model has no token with which the output could go on and keep to its constraint; stop tokens "
                "that the constraint needs as text may be the reason"
            )

    def _only_token(self) -> int | None:
        """The one token that may follow; None if there are others, or none."""
        if self._num_words != 1:
            return None
        index = int(self._mask.argmax())
        word = int(self._mask[index])
        return index * 32 + word.bit_length() - 1 if word.bit_count() == 1 else None


@contextmanager
def _within_limits() -> Iterator[None]:
    try:
        yield
    except ConstraintError:
        raise
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
