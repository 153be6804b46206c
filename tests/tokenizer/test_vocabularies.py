"""Vocabularies of real models against the ids that the models' own tokenizers give."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.tokenizer.gguf.pre_tokenizers import PRE_TOKENIZATIONS
from tests.support.vocabularies import cases, vocabulary_metadata, vocabulary_tokenizer
from tests.tokenizer.corpus import CORPUS

BYTE_LEVEL = [
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "mpt",
    "qwen2",
    "refact",
    "starcoder",
]
OTHERS = ["bert-bge", "llama-spm", "phi-3"]


@pytest.mark.parametrize("name", BYTE_LEVEL + OTHERS)
def test_agrees_with_the_models_own_tokenizer(name: str) -> None:
    tokenizer = vocabulary_tokenizer(name)
    for text, expected in cases(name):
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text


def test_gemma_3_agrees_with_gemma_4() -> None:
    """They share one vocabulary; that of Gemma 4 comes with texts, but with merges instead of scores."""
    tokenizer = vocabulary_tokenizer("gemma")
    for text, expected in cases("gemma-4"):
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text


def composed(name: str, text: str) -> str:
    nfc = PRE_TOKENIZATIONS[vocabulary_metadata(name)["tokenizer.ggml.pre"]].nfc
    return unicodedata.normalize("NFC", text) if nfc else text


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_the_corpus_survives(name: str) -> None:
    tokenizer = vocabulary_tokenizer(name)
    for text in CORPUS.values():
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == composed(name, text)


@given(st.text())
def test_every_text_survives(text: str) -> None:
    for name in ("gpt-2", "deepseek-coder"):
        tokenizer = vocabulary_tokenizer(name)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", BYTE_LEVEL + OTHERS + ["gemma"])
def test_pieces_make_up_the_whole(name: str) -> None:
    tokenizer = vocabulary_tokenizer(name)
    for text in CORPUS.values():
        token_ids = tokenizer.encode(text)
        for skip_special_tokens in (True, False):
            detokenizer = tokenizer.detokenizer(skip_special_tokens)
            pieces = [detokenizer.add([token_id]) for token_id in token_ids]
            whole = tokenizer.decode(token_ids, skip_special_tokens)
            assert "".join(pieces) + detokenizer.finish() == whole


def test_added_letters_are_letters() -> None:
    """In DeepSeek's vocabulary ü is an added token, and not the byte that ü stands for in other tokens."""
    tokenizer = vocabulary_tokenizer("deepseek-llm")
    token_ids = tokenizer.encode("für")
    assert 100014 in token_ids
    assert tokenizer.decode(token_ids) == "für"
    assert tokenizer.token_text(100014) == "ü"


def test_what_goes_around_a_text() -> None:
    """Llama 3's old files do not say that a text begins with a token; BERT's say nothing at all."""
    for name, prefix, suffix in (
        ("llama-bpe", [128000], []),
        ("llama-spm", [1], []),
        ("gemma", [2], []),
        ("command-r", [5], []),
        ("gpt-2", [], []),
        ("qwen2", [], []),
        ("bert-bge", [101], [102]),
    ):
        tokenizer = vocabulary_tokenizer(name)
        inside = tokenizer.encode("hello", add_special_tokens=False)
        assert tokenizer.encode("hello") == prefix + inside + suffix, name
        assert tokenizer.encode("") == prefix + suffix, name
        spelled_out = tokenizer.decode(prefix, skip_special_tokens=False) + "hello"
        assert tokenizer.encode(spelled_out) == prefix + inside + suffix, name


def test_named_templates() -> None:
    tokenizer = vocabulary_tokenizer("command-r")
    messages = [{"role": "user", "content": "Hi"}]
    plain = tokenizer.apply_chat_template(messages)
    tool = {"name": "look_up", "description": "Finds", "parameter_definitions": {}}
    with_tools = tokenizer.apply_chat_template(messages, tools=[tool])
    assert plain.startswith("<BOS_TOKEN>")
    assert "look_up" not in plain
    assert "look_up" in with_tools
    assert tokenizer.encode(plain).count(5) == 1


@pytest.mark.parametrize("name", ["aquila", "gpt-neox"])
def test_old_files_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre is missing: .* convert the original model anew"):
        vocabulary_tokenizer(name)


@pytest.mark.parametrize(("name", "model"), [("nomic-bert-moe", "t5"), ("gemma-4", "gemma4")])
def test_other_kinds_are_refused(name: str, model: str) -> None:
    with pytest.raises(ValueError, match=rf"model is '{model}', and Pelton reads only gpt2, llama, bert"):
        vocabulary_tokenizer(name)


def test_unknown_pre_tokenizers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"pre is 'qwen35', and Pelton reads only command-r, .*, tekken"):
        vocabulary_tokenizer("qwen35")
