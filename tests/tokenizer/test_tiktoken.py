"""Byte-level vocabularies whose ids are ranks, against tiktoken; cuts against its expressions."""

import re
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest
import regex
import tiktoken
import tiktoken_ext.openai_public
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.vocabularies import vocabulary_metadata, vocabulary_tokenizer
from tests.tokenizer.byte_level import BYTES, cuts
from tests.tokenizer.corpus import CORPUS

ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXPRESSIONS = {
    # As Meta and Alibaba published them, for tiktoken.
    "llama-bpe": rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",
    "qwen2": rf"{ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}

SPECIAL_TOKEN = re.compile(r"<\|\w+\|>|\[PAD\d+\]")
"""What special tokens of these vocabularies look like; the references know none."""


@cache
def reference(name: str) -> Callable[[str], list[int]]:
    metadata = vocabulary_metadata(name)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"].tolist()
    ranks = {
        bytes(BYTES[letter] for letter in token): token_id
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == 1
    }
    encoding = tiktoken.Encoding(name, pat_str=EXPRESSIONS[name], mergeable_ranks=ranks, special_tokens={})
    if name == "qwen2":
        return lambda text: encoding.encode(unicodedata.normalize("NFC", text))
    return encoding.encode


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_agrees_on_the_corpus(name: str) -> None:
    for text in CORPUS.values():
        assert vocabulary_tokenizer(name).encode(text, add_special_tokens=False) == reference(name)(text), text


@given(st.text(st.characters(codec="utf-8")))
@settings(max_examples=200)
def test_agrees_on_any_text(text: str) -> None:
    assume(SPECIAL_TOKEN.search(text) is None)  # hypothesis makes texts of the constants in our sources, too
    for name in EXPRESSIONS:
        assert vocabulary_tokenizer(name).encode(text, add_special_tokens=False) == reference(name)(text)


def test_the_cuts_of_gpt_4o(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiktoken_ext.openai_public, "load_tiktoken_bpe", lambda *args, **kwargs: {})
    expression = tiktoken_ext.openai_public.o200k_base()["pat_str"]
    for text in CORPUS.values():
        assert cuts("gpt-4o", text) == [match.group() for match in regex.finditer(expression, text)], text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12345 6", ["123", "45", " ", "6"]),
        ("x=f(a) .b", ["x", "=f", "(a", ")", " .", "b"]),
        ("abc你好かな def", ["abc", "你好かな", " def"]),
        ("e\u0301t\u00e9 \n\n  z", ["e\u0301t\u00e9", " \n\n", " ", " z"]),
    ],
)
def test_the_cuts_of_deepseek_v3(text: str, expected: list[str]) -> None:
    assert cuts("deepseek-v3", text) == expected
