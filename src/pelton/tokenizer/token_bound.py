"""How few tokens a text can have, without tokenizing it."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import tokenizers

from pelton.tokenizer.component_parts import component_parts
from pelton.tokenizer.detokenizer import BYTE_ALPHABET

_MAX_DECOMPOSITION = 4
"""Characters that one character of NFC stands for, at most: as many as it has in NFD, by Unicode's Annex 15."""


class TokenBound:
    """A lower bound, which holds only where no part of a text can vanish and no token stands for any number of
    characters. Many vocabularies have such tokens: unknown ones, and added ones that take in the spaces beside them.
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def fewest_tokens(self, text: str) -> int:
        """0 where nothing is known."""
        if self._shrinking is None:
            return 0
        # A token has at most as many characters as its own text, which has one for each byte where it is of bytes.
        size = len(text.encode(errors="surrogatepass").translate(None, self._lost)) if self._lost else len(text)
        return -(-size // (self._longest * self._shrinking))

    @cached_property
    def _longest(self) -> int:
        """Characters of a token; bytes of an added one, which are at least as many."""
        added = (token.content.encode() for token in self._backend.get_added_tokens_decoder().values())
        return max(map(len, (*self._backend.get_vocab(with_added_tokens=False), *added)), default=1)

    @cached_property
    def _lost(self) -> bytes:
        """Bytes that have no tokens."""
        return bytes(lost_bytes(self._backend)) if self._is_of_bytes else b""

    @cached_property
    def _is_of_bytes(self) -> bool:
        """Whether the model is given the bytes of a text, each as a letter."""
        parts = component_parts(self._backend.pre_tokenizer)
        return self._model["type"] == "BPE" and any(part["type"] == "ByteLevel" for part in parts)

    @cached_property
    def _shrinking(self) -> int | None:
        """How many characters of a text a normalizer makes one of, at most; None if a text has no bound."""
        keeps_all = (
            all(not token.lstrip and not token.rstrip for token in self._backend.get_added_tokens_decoder().values())
            and all(map(_keeps_characters, component_parts(self._backend.pre_tokenizer)))
            and (self._is_of_bytes or self._has_no_unknown)
        )
        if not keeps_all:
            return None
        shrinking = 1
        for part in component_parts(self._backend.normalizer):
            if part["type"] == "NFC" and not self._lost:
                shrinking *= _MAX_DECOMPOSITION
            elif not _does_not_shorten(part):
                return None
        return shrinking

    @property
    def _has_no_unknown(self) -> bool:
        """Whether characters that the vocabulary lacks become tokens for each of their bytes."""
        has_bytes = all(self._backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
        return self._model["type"] in ("BPE", "Unigram") and bool(self._model.get("byte_fallback")) and has_bytes

    @cached_property
    def _model(self) -> dict[str, Any]:
        """Without its vocabulary."""
        state: dict[str, Any] = json.loads(self._backend.model.__getstate__())
        return {name: value for name, value in state.items() if name not in ("vocab", "merges")}


def lost_bytes(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Bytes that a byte-level vocabulary has no tokens for."""
    return frozenset(byte for letter, byte in BYTE_ALPHABET.items() if backend.token_to_id(chr(letter)) is None)


def _keeps_characters(part: Mapping[str, Any]) -> bool:
    if part["type"] in ("Split", "Punctuation"):
        return bool(part["behavior"] != "Removed")
    return part["type"] in ("ByteLevel", "Digits", "Metaspace")


def _does_not_shorten(part: Mapping[str, Any]) -> bool:
    """Of a normalizer, in characters."""
    if part["type"] == "Replace":
        pattern: str | None = part["pattern"].get("String")
        return pattern is not None and len(part["content"]) >= len(pattern)
    return bool(part["type"] == "Prepend")
