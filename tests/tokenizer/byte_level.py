"""Byte-level vocabularies, seen from outside."""

from tokenizers import pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pelton.tokenizer.gguf.pre_tokenizers import PRE_TOKENIZATIONS

LETTERS = bytes_to_unicode()
"""Byte -> the letter that stands for it."""
BYTES = {letter: byte for byte, letter in LETTERS.items()}


def cuts(name: str, text: str) -> list[str]:
    """A text in pieces, before its bytes are written as letters."""
    steps = pre_tokenizers.Sequence(list(PRE_TOKENIZATIONS[name].steps()))
    pieces = [piece for piece, _ in steps.pre_tokenize_str(text)]
    return [bytes(BYTES[letter] for letter in piece).decode("utf-8", "surrogateescape") for piece in pieces]
