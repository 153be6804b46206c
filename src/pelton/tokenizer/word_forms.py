"""The token ids of a word, every way it may stand in a text."""

from collections.abc import Callable
from string import ascii_lowercase

Encode = Callable[[str], list[int]]

_ANCHORS = ("\n", *ascii_lowercase)
"""What may stand before a word. A new line first: it joins with nothing that follows; WordPiece drops it, though, and
sees a word that is glued to another only behind a letter."""


def word_forms(encode: Encode, word: str) -> list[list[int]]:
    """Ids of the word as a text of its own, after a space, at the beginning of a line, and inside another word.

    Vocabularies that put a space before every text (SentencePiece), or a sign before what continues a word (WordPiece),
    write the same word in several ways. Spaces at the beginning of `word` do not count. Empty if there are no tokens.
    """
    bare = word.lstrip(" ") or word
    if not encode(bare):
        return []
    forms = []
    for text in (bare, f" {bare}"):
        forms += [encode(text), _after_anchor(encode, text)]
    return [form for index, form in enumerate(forms) if form and form not in forms[:index]]


def _after_anchor(encode: Encode, text: str) -> list[int]:
    """The text's ids behind the first anchor that keeps its own; empty if none does."""
    for anchor in _ANCHORS:
        before, both = encode(anchor), encode(anchor + text)
        if before and both[: len(before)] == before and len(both) > len(before):
            return both[len(before) :]
    return []
