"""A grammar that lasts, though what its matchers share fills up."""

import time
from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import TypeVar

from pelton.grammar.backend import CompiledGrammar, GrammarMatcher
from pelton.ops.arrays import UInt32

MAX_SECONDS = 0.05
"""Of processor time. A grammar that took longer is not compiled again while everybody waits for a step."""
SLOW_MASK_SECONDS = 1e-4
MASKS_TO_JUDGE = 256
MIN_TOKENS = 20
"""Of all outputs that use a compilation, before there is another one in its place."""
_FOUND_BYTES_PER_SECOND = 1 << 30
"""Of memory for what a compilation finds out about its grammar, by the time that slow masks take; measured."""
_MAX_FOUND_BYTES = 75_000_000

T = TypeVar("T")


class LastingGrammar(CompiledGrammar):
    """Compiled once, and again when its matchers reach a limit together, or when their masks are slow.

    Matchers of one compilation may share what they find out about it. They share the room for that, too: what one
    output has filled fails the others, which could go on. They do, with matchers of another compilation that take the
    same tokens. And they wait for each other: where masks take long, there are several compilations, to which new
    matchers are dealt, so that as many threads can fill masks.
    """

    def __init__(self, compile_grammar: Callable[[], CompiledGrammar], max_copies: int = 1) -> None:
        """`max_copies` that are used at the same time."""
        self._compile = compile_grammar
        self._max_copies = max_copies
        self._lock = Lock()
        start = time.thread_time()
        self._copies = [Copy(compile_grammar())]
        self._is_quick = time.thread_time() - start <= MAX_SECONDS
        self._is_worn = False
        self._num_matchers = 0
        self._num_masks, self._mask_seconds = 0, 0.0

    @property
    def num_bytes(self) -> int:
        return sum(copy.num_bytes for copy in self._copies)

    @property
    def is_worn(self) -> bool:
        return self._is_worn

    def new_matcher(self) -> "LastingMatcher":
        self._num_matchers += 1
        return LastingMatcher(self, self._copies[self._num_matchers % len(self._copies)])

    def replace(self, copy: "Copy", failed: CompiledGrammar) -> bool:
        """Compile a copy again, unless another matcher has had that done. Returns whether there is another one."""
        with self._lock:
            if copy.grammar is failed:
                if not self._is_quick or copy.num_tokens < MIN_TOKENS:
                    self._is_worn = True
                    return False
                copy.start_over(self._compile())
            return True

    def count_mask(self, seconds: float) -> None:
        """Note how long a mask took; from time to time, see whether there should be one copy more."""
        self._num_masks += 1
        self._mask_seconds += seconds
        if self._num_masks < MASKS_TO_JUDGE:
            return
        is_slow = self._mask_seconds > SLOW_MASK_SECONDS * self._num_masks
        self._num_masks, self._mask_seconds = 0, 0.0
        if is_slow and self._is_quick:
            with self._lock:
                if len(self._copies) < self._max_copies:
                    self._copies.append(Copy(self._compile()))


class Copy:
    """One of the compilations of a grammar that are used at the same time."""

    _groups = count(1)

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.group = next(self._groups)
        """Of its matchers."""
        self.grammar = grammar
        self.num_tokens = MIN_TOKENS
        """That matchers have taken since it was compiled; enough of them for the first time."""
        self._slow_seconds = 0.0

    @property
    def num_bytes(self) -> int:
        found = min(_MAX_FOUND_BYTES, int(self._slow_seconds * _FOUND_BYTES_PER_SECOND))
        return self.grammar.num_bytes + found

    def start_over(self, grammar: CompiledGrammar) -> None:
        self.grammar, self.num_tokens, self._slow_seconds = grammar, 0, 0.0

    def count_mask(self, seconds: float) -> None:
        self._slow_seconds += max(0.0, seconds - SLOW_MASK_SECONDS / 2)


class LastingMatcher(GrammarMatcher):
    def __init__(self, grammar: LastingGrammar, copy: Copy) -> None:
        self._grammar = grammar
        self._copy = copy
        self.group = copy.group
        self._current = copy.grammar
        self._matcher = self._current.new_matcher()
        self._token_ids: list[int] = []

    def fill_bitmask(self, row: UInt32) -> None:
        start = time.perf_counter()
        try:
            self._matcher.fill_bitmask(row)
        except RuntimeError:
            self._elsewhere(lambda matcher: matcher.fill_bitmask(row))
        else:
            seconds = time.perf_counter() - start
            self._copy.count_mask(seconds)
            self._grammar.count_mask(seconds)

    def accept(self, token_id: int) -> bool:
        try:
            is_accepted = self._matcher.accept(token_id)
        except RuntimeError:
            is_accepted = self._elsewhere(lambda matcher: matcher.accept(token_id))
        if is_accepted:
            self._token_ids.append(token_id)
            self._copy.num_tokens += 1
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
            is_new = self._copy.grammar is self._current
            if not self._grammar.replace(self._copy, self._current):
                raise RuntimeError("it has reached the limits of its backend")
            self._current = self._copy.grammar
            self._matcher = self._current.new_matcher()
            try:
                for token_id in self._token_ids:
                    self._matcher.accept(token_id)
                return operation(self._matcher)
            except RuntimeError:
                if is_new:
                    raise
