"""Outputs drawn from a grammar's masks, as a model without any sense would write them, and what a grammar accepts."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pelton.grammar.backend import CompiledGrammar, GrammarMatcher, GrammarVocabulary
from pelton.ops.arrays import UInt32


class DeadEndError(AssertionError):
    """An output that is not complete and cannot go on."""


@dataclass(frozen=True)
class Generation:
    token_ids: list[int]
    is_complete: bool
    """Whether it ended because it may; else it was cut at the greatest length."""


def mask_of(matcher: GrammarMatcher, vocab_size: int) -> UInt32:
    """The matcher's mask, [ceil(V / 32)]; what stood in the row before must not matter."""
    row = np.full(-(-vocab_size // 32), 0xFFFFFFFF, dtype=np.uint32)
    matcher.fill_bitmask(row)
    return row


def allowed_tokens(matcher: GrammarMatcher, vocabulary: GrammarVocabulary) -> list[int]:
    """The tokens that may follow. Special tokens, empty ones and rows beyond the vocabulary must not be among them."""
    bits = np.unpackbits(mask_of(matcher, vocabulary.vocab_size).view(np.uint8), bitorder="little")
    allowed: list[int] = np.flatnonzero(bits).tolist()
    assert not allowed or allowed[-1] < vocabulary.vocab_size
    assert not set(allowed) & set(vocabulary.special_token_ids)
    assert all(vocabulary.token_bytes[token_id] for token_id in allowed)
    return allowed


def generate(
    grammar: CompiledGrammar,
    vocabulary: GrammarVocabulary,
    rng: random.Random,
    *,
    max_tokens: int = 40,
    stop_chance: float = 0.2,
    preferred: frozenset[int] = frozenset(),
    preference: float = 0.5,
) -> Generation:
    """An output of up to `max_tokens`. A share of them is drawn from the preferred ones, where some may follow.

    Raises DeadEndError if the grammar leads into one.
    """
    matcher = grammar.new_matcher()
    token_ids: list[int] = []
    while True:
        allowed = allowed_tokens(matcher, vocabulary)
        if not allowed and not matcher.is_accepting:
            raise DeadEndError(f"{_text(vocabulary, token_ids)} is not complete and cannot go on")
        is_full = len(token_ids) == max_tokens
        if matcher.is_accepting and (not allowed or is_full or rng.random() < stop_chance):
            return Generation(token_ids, is_complete=True)
        if is_full:
            return Generation(token_ids, is_complete=False)
        favourites = [token_id for token_id in allowed if token_id in preferred]
        token_ids.append(rng.choice(favourites if favourites and rng.random() < preference else allowed))
        assert matcher.accept(token_ids[-1]), f"{token_ids[-1]} is in the mask after {_text(vocabulary, token_ids)}"


def accepts(grammar: CompiledGrammar, vocabulary: GrammarVocabulary, token_ids: Sequence[int]) -> bool:
    """Whether the tokens are a complete output. Masks and `accept` must agree about every one of them."""
    matcher = grammar.new_matcher()
    for token_id in token_ids:
        is_allowed = bool(mask_of(matcher, vocabulary.vocab_size)[token_id // 32] >> np.uint32(token_id % 32) & 1)
        assert matcher.accept(token_id) == is_allowed, (token_id, is_allowed)
        if not is_allowed:
            return False
    return matcher.is_accepting


def complete_texts(
    grammar: CompiledGrammar, vocabulary: GrammarVocabulary, alphabet: str, max_length: int
) -> Iterator[str]:
    """All complete outputs of up to `max_length` characters of an alphabet, written in single bytes."""
    matcher = grammar.new_matcher()
    spellings = [(character, vocabulary.encode(character)) for character in alphabet]

    def follow(text: str) -> Iterator[str]:
        if matcher.is_accepting:
            yield text
        if len(text) == max_length:
            return
        for character, token_ids in spellings:
            num_accepted = _accept_all(matcher, token_ids)
            if num_accepted == len(token_ids):
                yield from follow(text + character)
            matcher.rollback(num_accepted)

    return follow("")


def complete_characters(
    grammar: CompiledGrammar, vocabulary: GrammarVocabulary, is_tried: Callable[[bytes], bool]
) -> Iterator[str]:
    """Outputs of a single character, of which `is_tried` wants the first bytes, all but the last. The vocabulary's
    first 256 tokens must be the bytes."""
    matcher = grammar.new_matcher()

    def follow(content: bytes) -> Iterator[str]:
        for byte in (token_id for token_id in allowed_tokens(matcher, vocabulary) if token_id < 256):
            longer = content + bytes([byte])
            if len(longer) == _num_bytes(longer[0]):
                yield longer.decode()
            elif len(longer) < _num_bytes(longer[0]) - 1 or is_tried(longer):
                assert matcher.accept(byte)
                assert not matcher.is_accepting
                yield from follow(longer)
                matcher.rollback(1)

    return follow(b"")


def _num_bytes(first: int) -> int:
    """Of a character in UTF-8 that begins so."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4


def _accept_all(matcher: GrammarMatcher, token_ids: Sequence[int]) -> int:
    for num_accepted, token_id in enumerate(token_ids):
        if not matcher.accept(token_id):
            return num_accepted
    return len(token_ids)


def _text(vocabulary: GrammarVocabulary, token_ids: Sequence[int]) -> bytes:
    return b"".join(vocabulary.token_bytes[token_id] for token_id in token_ids)
