"""A grammar that lasts, though what its matchers share fills up."""

import time
from collections.abc import Callable
from typing import TypeVar

from pelton.grammar.backend import CompiledGrammar, GrammarMatcher
from pelton.ops.arrays import UInt32

MAX_SECONDS = 0.05
"""A grammar that took longer is not compiled again while everybody waits for a step."""
MIN_TOKENS = 100
"""Of all outputs together, from one such compilation to the next."""

T = TypeVar("T")


class LastingGrammar(CompiledGrammar):
    """Compiled once, and again when its matchers reach a limit together.

    Matchers of one compilation may share what they find out about it, and the room for that: what one output has filled
    fails the others, which could go on. They do, with matchers of another compilation that take the same tokens.
    """

    def __init__(self, compile_grammar: Callable[[], CompiledGrammar]) -> None:
        self._compile = compile_grammar
        start = time.perf_counter()
        self.current = compile_grammar()
        self._is_quick = time.perf_counter() - start <= MAX_SECONDS
        self._is_worn = False
        self._num_tokens = MIN_TOKENS
        """That its matchers have taken since it was compiled."""

    @property
    def num_bytes(self) -> int:
        return self.current.num_bytes

    @property
    def is_worn(self) -> bool:
        return self._is_worn

    def new_matcher(self) -> "LastingMatcher":
        return LastingMatcher(self)

    def replace(self, failed: CompiledGrammar) -> bool:
        """Compile it again, unless another matcher has had that done. Returns whether there is another one."""
        if self.current is not failed:
            return True
        if not self._is_quick:
            self._is_worn = True
        if self._is_worn or self._num_tokens < MIN_TOKENS:
            return False
        self.current, self._num_tokens = self._compile(), 0
        return True

    def count_token(self) -> None:
        self._num_tokens += 1


class LastingMatcher(GrammarMatcher):
    def __init__(self, grammar: LastingGrammar) -> None:
        self._grammar = grammar
        self._current = grammar.current
        self._matcher = self._current.new_matcher()
        self._token_ids: list[int] = []

    def fill_bitmask(self, row: UInt32) -> None:
        try:
            self._matcher.fill_bitmask(row)
        except RuntimeError:
            self._elsewhere(lambda matcher: matcher.fill_bitmask(row))

    def accept(self, token_id: int) -> bool:
        try:
            is_accepted = self._matcher.accept(token_id)
        except RuntimeError:
            is_accepted = self._elsewhere(lambda matcher: matcher.accept(token_id))
        if is_accepted:
            self._token_ids.append(token_id)
            self._grammar.count_token()
        return is_accepted

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        del self._token_ids[len(self._token_ids) - num_tokens :]

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting

    def _elsewhere(self, operation: Callable[[GrammarMatcher], T]) -> T:
        """Go on with a matcher of another compilation. Raises RuntimeError if it is too soon for that, or there is none
        that can."""
        while True:
            is_new = self._grammar.current is self._current
            if not self._grammar.replace(self._current):
                raise RuntimeError("it has reached the limits of its backend")
            self._current = self._grammar.current
            self._matcher = self._current.new_matcher()
            try:
                for token_id in self._token_ids:
                    self._matcher.accept(token_id)
                return operation(self._matcher)
            except RuntimeError:
                if is_new:
                    raise
