"""Turning a growing list of token ids into text, piece by piece.

For every split of the ids, the pieces that `add` and `finish` return make up `decode` of all ids.
"""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Container, Sequence
from itertools import pairwise

import tokenizers

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f+][0-9A-Fa-f]>")
"""As the library reads them: its number parser takes a plus sign, too."""


def byte_of(token: str) -> bytes | None:
    """The byte that a token such as <0x0A> stands for; None for others."""
    return bytes([int(token[3:-1], 16)]) if _BYTE_TOKEN.fullmatch(token) else None


class IncrementalDetokenizer(ABC):
    """The text of one sequence of tokens."""

    @abstractmethod
    def add(self, token_ids: Sequence[int]) -> str:
        """Take more tokens; return the new text that later tokens cannot change."""

    @abstractmethod
    def finish(self) -> str:
        """The rest of the text, once there are no more tokens."""


def _byte_alphabet() -> dict[int, int]:
    """Characters that stand for bytes in byte-level vocabularies -> the bytes.

    From GPT-2's `bytes_to_unicode`: printable Latin-1 stands for itself, the other bytes, in order, for the
    characters from 256 on.
    """
    ranges = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
    printable = {byte for first, last in ranges for byte in range(ord(first), ord(last) + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


class TokenBytes(dict[int, bytes]):
    """Token id -> bytes of a byte-level vocabulary; entries appear when they are first looked up.

    Skipped tokens and ids outside the vocabulary have no bytes. Added tokens are texts as they stand, also where the
    library's decoder reads their letters as bytes (DeepSeek has tokens such as ü).
    """

    def __init__(self, backend: tokenizers.Tokenizer, skipped: Container[int]) -> None:
        super().__init__()
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        self._skipped = skipped

    def __missing__(self, token_id: int) -> bytes:
        text = None if token_id in self._skipped else self._backend.id_to_token(token_id)
        if text is None:
            data = b""
        elif token_id not in self._added and all(ord(char) in BYTE_ALPHABET for char in text):
            data = bytes(BYTE_ALPHABET[ord(char)] for char in text)
        else:
            data = text.encode()
        self[token_id] = data
        return data


class ByteLevelDetokenizer(IncrementalDetokenizer):
    """For byte-level vocabularies: bytes from a table, characters when they are complete."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._bytes = token_bytes
        self._held = b""
        """The beginning of a character."""

    def add(self, token_ids: Sequence[int]) -> str:
        table = self._bytes
        data = self._held + b"".join([table[token_id] for token_id in token_ids])
        text, num_used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[num_used:]
        return text

    def finish(self) -> str:
        text = self._held.decode("utf-8", "replace")
        self._held = b""
        return text


class WindowDetokenizer(IncrementalDetokenizer):
    """For all other vocabularies: decodes a short window of ids, and returns by what it grew.

    all ids:   emitted before | context            | new            | held back
    _ids:                      [0, _read)           [_read, stable)  [stable, end)

    The context, the ids of the last piece, stands for everything before it: decoders look no further. Held
    back are bytes at the end, since one that turns out invalid spoils the whole run before it, and text that
    ends in the replacement character, which more bytes may complete.

    Tokens in `skipped` have no text; there is nothing between two neighbours in `joined`.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, skipped: Collection[int] = (), joined: Collection[int] = ()
    ) -> None:
        self._backend = backend
        self._skipped = skipped
        self._joined = joined
        self._ids: list[int] = []
        self._context = ""
        """Text of the first `_read` ids."""
        self._read = 0

    def add(self, token_ids: Sequence[int]) -> str:
        stable = 0
        for token_id in token_ids:
            if token_id in self._skipped:
                continue
            token = self._backend.id_to_token(token_id)
            if token is None:
                continue
            self._ids.append(token_id)
            if not _BYTE_TOKEN.fullmatch(token):
                stable = len(self._ids)
        if not stable:
            return ""
        text = self._decode(self._ids[:stable])
        if len(text) <= len(self._context) or text.endswith(_REPLACEMENT):
            return ""
        piece = text[len(self._context) :]
        del self._ids[: self._read]
        self._read = stable - self._read
        self._context = self._decode(self._ids[: self._read])
        return piece

    def finish(self) -> str:
        piece = self._decode(self._ids)[len(self._context) :]
        self._ids, self._context, self._read = [], "", 0
        return piece

    def _decode(self, token_ids: Sequence[int]) -> str:
        if not self._joined:
            return self._backend.decode(token_ids, skip_special_tokens=False)
        cuts = [
            index
            for index, pair in enumerate(pairwise(token_ids), start=1)
            if pair[0] in self._joined and pair[1] in self._joined
        ]
        # Decoders put no space before the first token of a text.
        stretches = (token_ids[start:end] for start, end in pairwise([0, *cuts, len(token_ids)]))
        return "".join(self._backend.decode(stretch, skip_special_tokens=False) for stretch in stretches)
