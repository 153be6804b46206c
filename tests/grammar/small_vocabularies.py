"""Vocabularies of a few hundred tokens that are hard on grammars, and the tokens that a text has in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class SmallVocabulary:
    """A `GrammarVocabulary` with one row for each of `token_bytes`; equal texts may stand in several rows."""

    token_bytes: Sequence[bytes]
    special_token_ids: Sequence[int]

    @property
    def vocab_size(self) -> int:
        return len(self.token_bytes)

    def encode(self, text: str) -> list[int]:
        """The longest token first, which is as canonical as a vocabulary without merges can be."""
        return self.encode_bytes(text.encode())

    def encode_bytes(self, content: bytes) -> list[int]:
        token_ids = []
        while content:
            length = min(len(content), self._max_length)
            while content[:length] not in self._first_ids:
                length -= 1
            token_ids.append(self._first_ids[content[:length]])
            content = content[length:]
        return token_ids

    def single_bytes(self, text: str) -> list[int]:
        return [self._first_ids[bytes([byte])] for byte in text.encode()]

    def decode(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.token_bytes[token_id] for token_id in token_ids)

    @cached_property
    def plain_token_ids(self) -> frozenset[int]:
        """Tokens of printable ASCII characters."""
        return frozenset(
            token_id
            for token_id, content in enumerate(self.token_bytes)
            if content and all(0x20 <= byte < 0x7F for byte in content)
        )

    @cached_property
    def _first_ids(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        texts = [(content, token_id) for token_id, content in enumerate(self.token_bytes) if token_id not in special]
        return {content: token_id for content, token_id in reversed(texts) if content}

    @cached_property
    def _max_length(self) -> int:
        return max(map(len, self._first_ids))


_BYTES = [bytes([byte]) for byte in range(256)]
_ACROSS_SYMBOLS = (
    b'{"',
    b'":',
    b'": ',
    b'", "',
    b'"}',
    b'"]',
    b"},{",
    b"}]",
    b"[[",
    b"]]",
    b"]}",
    b'":{"',
    b'":["',
    b"[{",
    b"null",
    b"true",
    b"false",
    b"((",
    b"))",
    b")*(",
    b")+",
    b"+(",
    b"1+1",
    b"-1",
    b"12",
    b"3.14",
    b"00",
    b"()",
    b"()()",
    b", ",
    b",,",
    b"\n\n",
    b"\r\n",
    b'""',
    b'"",',
    b',"',
    b"SELECT ",
    b" FROM ",
    b" WHERE ",
    b" AND",
    b"LECT",
    b" = ",
    b" <",
    b"COUNT(",
    b"ab",
    b"aa",
    b"aaaa",
    b"ba",
    b"bb",
    b"abc",
    b"bc",
    b"ca",
    b"aab",
    b" a",
    b"a ",
    b"  ",
    b"Hello",
    b" wor",
    b"ld",
    b"@",
    b".com",
    b"http",
    b"://",
    b"2024",
    b"-01-",
    b"\\u",
    b"\\\\",
    b'\\"',
    b"\\n",
    b"0x",
    b"#ff",
)
_PARTS_OF_CHARACTERS = (
    b"\xc3",
    b"\xa9",
    b"a\xc3",
    b"\xa9b",
    b"\xe2\x82",
    b"\x82\xac",
    b"\xf0\x9f",
    b"\x98\x80",
    b"\x9f\x98",
    b"\xf0\x9f\x98",
    b"\x80\xf0\x9f",
    b"\xed\xa0",
    b"\xff\xfe",
    b"\xc0\x80",
    "é".encode(),
    "éé".encode(),
    "😀".encode(),
    "😀😀".encode(),
    "日本".encode(),
    "本\xe9".encode(),
    "λ".encode(),
    "λβ".encode(),
    "ß".encode(),
    "e\u0301".encode(),
    "“".encode(),
)

BYTES = SmallVocabulary(token_bytes=(*_BYTES, b"</s>"), special_token_ids=(256,))
"""A token for each byte, and one that ends texts."""
PIECES = SmallVocabulary(
    token_bytes=(
        b"<s>",
        b"</s>",
        b"",
        *_BYTES,
        *_ACROSS_SYMBOLS,
        *_PARTS_OF_CHARACTERS,
        b"ab",
        b"{",
        b"1",
        b"\xa9",
        b"a",
        b"<s>",
        b"",
        b"",
    ),
    special_token_ids=(0, 1),
)
"""Tokens that hold several symbols or parts of characters; some twice, some empty, one that reads like a special token
and is none. Their number is no multiple of 32."""

VOCABULARIES = {"bytes": BYTES, "pieces": PIECES}
