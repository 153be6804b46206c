"""The entries of a GGUF file's `tokenizer.ggml.` keys, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken

from pelton.error_text import shown
from pelton.loader.gguf.file import MetadataValue
from pelton.loader.gguf.vocabulary_keys import PREFIX, TokenType

_MAX_TOKEN_LENGTH = 1024
"""In characters. Work grows with its square; the longest tokens of real vocabularies have 512."""
_SPELLED_OUT = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)


@dataclass(frozen=True)
class GGUFVocabulary:
    """Tokens and their types by id, ids by token, and all entries by key, without the prefix."""

    entries: Mapping[str, MetadataValue]
    tokens: list[str]
    token_ids: dict[str, int]
    types: NDArray[Any]

    def strings(self, key: str) -> list[str]:
        return _strings(self.entries, key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.entries.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{PREFIX}{key} must be true or false, got {shown(value)}")
        return value

    def token_id(self, key: str) -> int | None:
        """The id under a key; None if the file has no such key."""
        value = self.entries.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ValueError(f"{PREFIX}{key} must be a token id below {len(self.tokens)}, got {shown(value)}")
        return value

    def token(self, key: str) -> str | None:
        token_id = self.token_id(key)
        return None if token_id is None else self.tokens[token_id]

    def scores(self) -> NDArray[np.float64]:
        values = self.entries.get("scores")
        if not isinstance(values, np.ndarray) or len(values) != len(self.tokens):
            raise ValueError(f"{PREFIX}scores must hold one number for each of the {len(self.tokens)} tokens")
        scores = values.astype(np.float64)
        if not np.isfinite(scores).all():
            raise ValueError(f"{PREFIX}scores holds {scores[~np.isfinite(scores)][0]}, which is not a score")
        return scores

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that a text may spell out, and that no merge produces."""
        ids = np.flatnonzero(np.isin(self.types, _SPELLED_OUT)).tolist()
        control = (self.types != TokenType.USER_DEFINED).tolist()
        return [AddedToken(self.tokens[token_id], special=control[token_id], normalized=False) for token_id in ids]


def read_vocabulary(entries: Mapping[str, MetadataValue]) -> GGUFVocabulary:
    """Raises ValueError for tokens that are missing, twice or too long, and for types that do not fit them."""
    tokens = _strings(entries, "tokens")
    if not tokens:
        raise ValueError(f"{PREFIX}tokens is empty")
    token_ids = {token: token_id for token_id, token in enumerate(tokens)}
    if len(token_ids) < len(tokens):
        first = next(i for i, token in enumerate(tokens) if token_ids[token] != i)
        token = tokens[first]
        raise ValueError(f"{PREFIX}tokens has {shown(token)} twice, as {first} and as {token_ids[token]}")
    longest = max(map(len, tokens))
    if longest > _MAX_TOKEN_LENGTH:
        raise ValueError(
            f"{PREFIX}tokens holds a token of {longest} characters, and Pelton reads up to {_MAX_TOKEN_LENGTH}"
        )
    return GGUFVocabulary(entries, tokens, token_ids, _types(entries, len(tokens)))


def _types(entries: Mapping[str, MetadataValue], vocab_size: int) -> NDArray[Any]:
    types = entries.get("token_type")
    if types is None:
        return np.full(vocab_size, TokenType.NORMAL)
    if not isinstance(types, np.ndarray) or len(types) != vocab_size:
        raise ValueError(f"{PREFIX}token_type must hold one number for each of the {vocab_size} tokens")
    known = np.isin(types, list(TokenType))
    if not known.all():
        raise ValueError(f"{PREFIX}token_type holds {types[~known][0]}, which Pelton does not know")
    return types


def _strings(entries: Mapping[str, MetadataValue], key: str) -> list[str]:
    value = entries.get(key)
    if not isinstance(value, list):
        raise ValueError(f"{PREFIX}{key} must be a list of strings")
    return value
