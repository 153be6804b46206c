"""Outputs of JSON by chance: a model that knows nothing but how to come to an end."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pelton.grammar.backend import CompiledGrammar, GrammarMatcher, GrammarVocabulary
from pelton.tokenizer import Tokenizer

MAX_TOKENS = 400
_JSON_BYTES = frozenset(b'{}[]":,\\0123456789.-+eE truefalsn')
_CLOSING = (b"}", b"]", b'"', b":", b",")
"""What brings a text nearer to its end outside of strings, the most helpful first; inside only the quote does."""


class TokenizerVocabulary:
    """A real model's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.token_bytes: Sequence[bytes] = [tokenizer.token_bytes(token_id) for token_id in range(self.vocab_size)]
        self.special_token_ids: Sequence[int] = sorted(set(range(self.vocab_size)) - set(tokenizer.text_token_ids))
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Ending(Enum):
    COMPLETE = "complete"
    TOO_LONG = "not ended after the most tokens allowed"
    STUCK = "no token allowed, and not complete"
    LIMIT = "a limit of the backend exceeded"


@dataclass(frozen=True)
class RandomOutput:
    data: bytes
    ending: Ending
    num_tokens: int


class RandomWriter:
    """Chooses among the tokens that the mask allows, and ends where it may.

    At first it writes what it likes, mostly tokens that JSON is made of, which nest and repeat; after some tokens,
    whose number is random too, it prefers those that lead to an end.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._row = np.zeros((vocabulary.vocab_size + 31) // 32, np.uint32)

    @cached_property
    def _json_ids(self) -> NDArray[np.int64]:
        pieces = self._vocabulary.token_bytes
        return np.array([token_id for token_id, piece in enumerate(pieces) if piece and _JSON_BYTES.issuperset(piece)])

    @cached_property
    def _ranks(self) -> NDArray[np.int64]:
        """[2, V] how far a token is from being the best to end with, outside and inside of strings; 0 is the best."""
        pieces = self._vocabulary.token_bytes
        return np.array([[_rank(piece, closing) for piece in pieces] for closing in (_CLOSING, (b'"',))])

    def write(self, grammar: CompiledGrammar, rng: np.random.Generator) -> RandomOutput:
        """Raises AssertionError if the matcher refuses a token that its mask allows."""
        matcher = grammar.new_matcher()
        num_free = int(rng.choice((0, 4, 16, 64)))
        json_share, stop_share = float(rng.choice((0.2, 0.6, 0.95))), float(rng.choice((0.1, 0.6)))
        pieces: list[bytes] = []
        quotes = _Quotes()
        ending = Ending.TOO_LONG
        for position in range(MAX_TOKENS):
            is_free = position < num_free
            if matcher.is_accepting and (not is_free or rng.random() < stop_share):
                ending = Ending.COMPLETE
                break
            try:
                allowed = self.allowed(matcher)
            except RuntimeError:
                ending = Ending.LIMIT
                break
            if not allowed.any():
                ending = Ending.COMPLETE if matcher.is_accepting else Ending.STUCK
                break
            if is_free:
                token_id = self._free_choice(allowed, rng, json_share)
            else:
                token_id = self._closing_choice(allowed, rng, quotes.is_open)
            piece = self._vocabulary.token_bytes[token_id]
            assert matcher.accept(token_id), f"allowed, and refused: {piece!r}"
            pieces.append(piece)
            quotes.add(piece)
        return RandomOutput(b"".join(pieces), ending, len(pieces))

    def allowed(self, matcher: GrammarMatcher) -> NDArray[np.uint8]:
        """[V] the mask as zeros and ones."""
        matcher.fill_bitmask(self._row)
        bits = np.unpackbits(self._row.view(np.uint8), bitorder="little")
        assert not bits[self._vocabulary.vocab_size :].any(), "bits beyond the vocabulary"
        return bits[: self._vocabulary.vocab_size]

    def _free_choice(self, allowed: NDArray[np.uint8], rng: np.random.Generator, json_share: float) -> int:
        json_ids = self._json_ids[allowed[self._json_ids] != 0]
        if len(json_ids) and rng.random() < json_share:
            return int(rng.choice(json_ids))
        return int(rng.choice(np.flatnonzero(allowed)))

    def _closing_choice(self, allowed: NDArray[np.uint8], rng: np.random.Generator, in_string: bool) -> int:
        token_ids = np.flatnonzero(allowed)
        if rng.random() < 0.85:
            ranks = self._ranks[int(in_string)][token_ids]
            token_ids = token_ids[ranks == ranks.min()]
        return int(rng.choice(token_ids))


class _Quotes:
    """Whether a growing text is inside of a string."""

    def __init__(self) -> None:
        self.is_open = False
        self._is_escaped = False

    def add(self, piece: bytes) -> None:
        for byte in piece:
            if self._is_escaped:
                self._is_escaped = False
            elif byte == ord("\\"):
                self._is_escaped = True
            elif byte == ord('"'):
                self.is_open = not self.is_open


def _rank(piece: bytes, closing: Sequence[bytes]) -> int:
    if piece in closing:
        return closing.index(piece)
    if len(piece) == 1 and piece.isalnum():
        return len(closing)
    return len(closing) + (1 if len(piece) == 1 and piece > b" " and piece != b"\\" else 2)
