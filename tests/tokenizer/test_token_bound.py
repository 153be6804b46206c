"""`fewest_tokens` is never more than the tokens of a text, and says something of most vocabularies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from pelton.tokenizer import Tokenizer
from tests.support.vocabularies import vocabulary_tokenizer
from tests.tokenizer.backends import byte_level, word_piece
from tests.tokenizer.corpus import CORPUS

BOUNDED = ["gpt-2", "qwen2", "llama-bpe", "deepseek-llm", "llama-spm", "gemma"]
VOCABULARIES = [*BOUNDED, "falcon", "bert-bge", "phi-3"]
LONG_TOKENS = [" " * 100, "\n" * 60, "-" * 90, "=" * 70, "\u1f82", "\u0344", "e\u0301", "\x04", "<|endoftext|>", "\t"]
"""Texts of which few tokens are made, and what normalizers join."""


def bounded(backend) -> Tokenizer:
    return Tokenizer(backend, special_tokens={}, chat_template=None)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_no_text_has_fewer_tokens(name: str) -> None:
    tokenizer = vocabulary_tokenizer(name)
    for text in (*CORPUS.values(), *(piece * 50 for piece in LONG_TOKENS), "\u03b1\u0313\u0300\u0345" * 100):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


@given(st.lists(st.sampled_from(LONG_TOKENS) | st.text(max_size=20), max_size=20).map("".join))
def test_nor_has_any_other(smollm2: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, vocabulary_tokenizer("qwen2"), vocabulary_tokenizer("llama-spm")):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", BOUNDED)
def test_long_texts_have_many(name: str) -> None:
    assert vocabulary_tokenizer(name).fewest_tokens("word " * 1_000_000) > 1000


def test_bytes_that_the_vocabulary_lacks_do_not_count(smollm2: Tokenizer) -> None:
    assert smollm2.fewest_tokens("\x04" * 1_000_000) == 0
    assert smollm2.fewest_tokens("\ud800" * 1_000_000) > 0, "encoding refuses them"


def test_where_characters_may_vanish_nothing_is_known() -> None:
    assert bounded(byte_level()).fewest_tokens("a" * 10_000) > 0
    strips = byte_level()
    strips.add_tokens([AddedToken("<x>", rstrip=True)])
    removes = byte_level()
    removes.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), removes.pre_tokenizer])
    shortens = byte_level()
    shortens.normalizer = normalizers.Replace("aa", "a")
    trims = byte_level()
    trims.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    for backend in (strips, removes, shortens, trims, word_piece()):
        assert bounded(backend).fewest_tokens("a" * 10_000) == 0
