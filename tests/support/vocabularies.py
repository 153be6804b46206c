"""llama.cpp's vocabularies: tokenizers made of them, and what the models' own tokenizers give."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pelton.loader.gguf.file import GGUFFile
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.from_gguf import tokenizer_from_gguf
from tests.support.downloads import gemma_gguf, vocab_gguf

_SEPARATOR = "\n__ggml_vocab_test__\n"


@cache
def vocabulary_metadata(name: str) -> Mapping[str, Any]:
    """The metadata of one of them; `gemma` is the model's."""
    return GGUFFile(gemma_gguf() if name == "gemma" else vocab_gguf(name)).metadata


@cache
def vocabulary_tokenizer(name: str) -> Tokenizer:
    return tokenizer_from_gguf(vocabulary_metadata(name))


def cases(name: str) -> Iterator[tuple[str, list[int]]]:
    """Texts, and the ids that the model's own tokenizer gives without special tokens."""
    path = vocab_gguf(name)
    # Bytes: no line ending may be translated.
    texts = path.with_name(f"{path.name}.inp").read_bytes().decode().split(_SEPARATOR)
    lines = path.with_name(f"{path.name}.out").read_text().splitlines()
    if len(texts) == len(lines) + 1 and not texts[-1]:
        # The file ends in a separator.
        texts.pop()
    for text, line in zip(texts, lines, strict=True):
        yield text, [int(token_id) for token_id in line.split()]
