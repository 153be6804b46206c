"""Grammars by llguidance. It is imported when a backend is first used, for it takes a while."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pelton.error_text import one_line
from pelton.grammar.backend import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    GrammarVocabulary,
    UnsupportedGrammarError,
)
from pelton.grammar.llguidance_grammar import grammar_text
from pelton.ops.arrays import UInt32
from pelton.structured_outputs_params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

MAX_INITIAL_FUEL = 2_000_000
"""Work that compiling the terminals of one grammar may take; about 40 ms."""
MAX_STEP_FUEL = 200_000
"""Work that the terminals may take in one mask; about 15 ms."""
MAX_STEP_ITEMS = 20_000
"""Items that the parser may have in one mask. Ambiguous grammars take time for each: some 40 ms at most."""
MAX_ITEMS_IN_ROW = 20_000
MAX_LEXER_STATES = 50_000
"""Of all matchers of a grammar, which share a lexer; each of 1-2 KB."""
_BYTES_PER_CHARACTER = 25
"""Of memory, for what a grammar is written with: 23 for an enumeration, 7 for classes of characters."""
MAX_GRAMMAR_SIZE = 500_000
"""Symbols of all rules."""


_PLACE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_APPENDED = re.compile(r"<state>|<non-verbose/>|\n\s*while processing|\n\s*\d+ \||\. Enable '|: \(And ")
"""Where messages go on with what is of no use to users."""


class LLGuidanceMatcher(GrammarMatcher):
    """llguidance lets its end-of-text token follow a complete output; here nobody sees it."""

    def __init__(self, matcher: "LLMatcher", end_id: int, vocab_size: int) -> None:
        """`end_id`: llguidance's end token, which is no token of the model's, above all others."""
        self._matcher = matcher
        self._end_id = end_id
        self._vocab_size = vocab_size
        self._num_bytes = 4 * ((end_id + 32) // 32)
        self._mask = np.zeros(self._num_bytes // 4, np.uint32)
        self._address = self._mask.ctypes.data

    def fill_bitmask(self, row: UInt32) -> None:
        self._compute_mask()
        row[:] = self._mask[: len(row)]
        if self._end_id < 32 * len(row):
            row[-1] &= ~np.uint32(1 << self._end_id % 32)

    def accept(self, token_id: int) -> bool:
        if not 0 <= token_id < self._vocab_size:
            return False
        is_accepted = self._matcher.try_consume_tokens([token_id]) == 1
        if not is_accepted:
            self._compute_mask()  # raises if it is for a limit that nothing is accepted
        return is_accepted

    def _compute_mask(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._address, self._num_bytes)
        if self._matcher.is_error():
            raise RuntimeError(f"llguidance: {_error_text(self._matcher.get_error())}")

    def rollback(self, num_tokens: int) -> None:
        if num_tokens and not self._matcher.rollback(num_tokens):
            raise ValueError(f"num_tokens must be at most the number of accepted tokens, got {num_tokens}")

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()


class LLGuidanceGrammar(CompiledGrammar):
    def __init__(self, prototype: "LLMatcher", end_id: int, vocab_size: int, num_bytes: int) -> None:
        """`prototype` is never moved from its beginning."""
        self._prototype, self._end_id, self._vocab_size = prototype, end_id, vocab_size
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def new_matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._prototype.deep_copy(), self._end_id, self._vocab_size)


class LLGuidanceBackend(GrammarBackend):
    name: ClassVar[str] = "llguidance"

    @classmethod
    def is_installed(cls) -> bool:
        return find_spec("llguidance") is not None

    @classmethod
    def check(cls, params: StructuredOutputsParams) -> None:
        _prototype(params, grammar_text(params, None), _ByteTokenizer.get())

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        """Builds llguidance's index of the tokens once, which takes tenths of a second."""
        self._vocab_size = vocabulary.vocab_size
        self._vocabulary = vocabulary
        self._tokenizer = _tokenizer(vocabulary)

    def compile(self, params: StructuredOutputsParams) -> LLGuidanceGrammar:
        text = grammar_text(params, self._vocabulary)
        prototype = _prototype(params, text, self._tokenizer)
        return LLGuidanceGrammar(prototype, self._vocab_size, self._vocab_size, _BYTES_PER_CHARACTER * len(text))


class _ByteTokenizer:
    """The vocabulary of single bytes, for checks without a model."""

    vocab_size = 256
    token_bytes: Sequence[bytes] = [bytes([byte]) for byte in range(256)]
    special_token_ids: Sequence[int] = ()
    _lock = Lock()
    _tokenizer: "LLTokenizer | None" = None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    @classmethod
    def get(cls) -> "LLTokenizer":
        with cls._lock:
            if cls._tokenizer is None:
                cls._tokenizer = _tokenizer(cls())
            return cls._tokenizer


class _Wrapper:
    """What llguidance asks of a tokenizer: the model's tokens, and after them one that ends texts."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.eos_token_id = vocabulary.vocab_size
        self.tokens = [*vocabulary.token_bytes, b"<end of the output>"]
        self.special_token_ids = [*vocabulary.special_token_ids, self.eos_token_id]
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode(errors="replace") if isinstance(text, bytes) else text)


def _tokenizer(vocabulary: GrammarVocabulary) -> "LLTokenizer":
    from llguidance import LLTokenizer

    wrapper: Any = _Wrapper(vocabulary)
    return LLTokenizer(wrapper, n_vocab=vocabulary.vocab_size + 1, eos_token=[vocabulary.vocab_size])


def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW,
        initial_lexer_fuel=MAX_INITIAL_FUEL,
        step_lexer_fuel=MAX_STEP_FUEL,
        step_max_items=MAX_STEP_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_GRAMMAR_SIZE,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )


def _prototype(params: StructuredOutputsParams, text: str, tokenizer: "LLTokenizer") -> "LLMatcher":
    """A matcher at the beginning. Raises UnsupportedGrammarError."""
    from llguidance import LLMatcher

    matcher = LLMatcher(tokenizer, text, log_level=0, limits=_limits())
    if not matcher.is_error():
        can_begin = any(matcher.compute_bitmask())  # bits of tokens, or of the end
    if matcher.is_error():
        raise UnsupportedGrammarError(f"{params.kind}: llguidance cannot keep it: {_error_text(matcher.get_error())}")
    if not can_begin:
        raise UnsupportedGrammarError(f"{params.kind}: no output satisfies it")
    return matcher


def _error_text(text: str) -> str:
    """What llguidance says, without the state and the source that it shows, and without its hints for programmers."""
    text = _PLACE.sub("", text)
    if text.startswith("Unable to determine if regex is empty"):
        return "a pattern is too complex together with its minLength, maxLength or format"
    return one_line(_APPENDED.split(text, maxsplit=1)[0])
