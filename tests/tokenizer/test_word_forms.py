"""All ways to write a word, in real vocabularies: what a text with the word holds is among them."""

import pytest
import tokenizers
from sentencepiece import SentencePieceProcessor
from tokenizers import models, pre_tokenizers

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.from_gguf import tokenizer_from_gguf
from tests.support.downloads import mistral_file
from tests.support.sentencepiece_model import metadata_of
from tests.support.vocabularies import vocabulary_tokenizer
from tests.tokenizer.backends import BACKENDS

VOCABULARIES = ["llama-spm", "phi-3", "baichuan", "gemma", "llama-bpe", "qwen2", "gpt-2", "deepseek-llm", "bert-bge"]


def written(tokenizer: Tokenizer, word: str) -> set[tuple[str | None, ...]]:
    forms = tokenizer.word_forms(word)
    assert len(set(map(tuple, forms))) == len(forms)
    return {tuple(map(tokenizer._backend.id_to_token, form)) for form in forms}


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("llama-spm", "foo", {("▁foo",), ("foo",), ("▁", "▁foo")}),
        ("llama-spm", "\n", {("<0x0A>",), ("▁", "<0x0A>"), ("▁▁", "<0x0A>")}),
        ("llama-spm", "Müller", {("▁Müller",), ("M", "üller"), ("▁", "▁Müller")}),
        ("gemma", "foo", {("foo",), ("▁foo",)}),
        ("gemma", "Müller", {("M", "üller"), ("▁Müller",)}),
        ("gemma", "two words", {("two", "▁words"), ("▁two", "▁words")}),
        ("llama-bpe", "foo", {("foo",), ("Ġfoo",)}),
        ("llama-bpe", "\nfoo", {("Ċ", "foo"), ("ĠĊ", "foo")}),
        ("qwen2", "...", {("...",), ("Ġ...",)}),
        ("bert-bge", "Hello", {("hello",), ("##hell", "##o")}),
        ("bert-bge", "...", {(".", ".", ".")}),
    ],
)
def test_forms(name: str, word: str, expected: set[tuple[str, ...]]) -> None:
    tokenizer = vocabulary_tokenizer(name)
    assert written(tokenizer, word) == expected
    if word.strip():
        assert written(tokenizer, f" {word}") == written(tokenizer, f"   {word}") == expected


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_forms_in_mistrals_vocabularies(name: str) -> None:
    tokenizer = tokenizer_from_gguf(metadata_of(SentencePieceProcessor(model_file=str(mistral_file(name)))))
    assert {("▁foo",), ("foo",)} <= written(tokenizer, "foo")


def holds(token_ids: list[int], form: list[int]) -> bool:
    return any(token_ids[start : start + len(form)] == form for start in range(len(token_ids)))


TEXTS = ["{}", "{} is", "It is {} here", "It is\n{}\n", "Is it\n\n  {} then", "user:\n{}, he said"]


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("word", ["dog", "London", "water", "red house", "123", "Größe", "日本"])
def test_a_text_with_the_word_holds_one_of_them(name: str, word: str) -> None:
    tokenizer = vocabulary_tokenizer(name)
    forms = tokenizer.word_forms(word)
    for text in TEXTS:
        token_ids = tokenizer.encode(text.format(word))
        assert any(holds(token_ids, form) for form in forms), text


@pytest.mark.parametrize("name", ["word piece", "no decoder"])
def test_both_forms_of_word_piece(name: str) -> None:
    """This pre-tokenizer drops new lines, so a letter has to stand before the word."""
    tokenizer = Tokenizer(BACKENDS[name](), special_tokens={}, chat_template=None)
    assert written(tokenizer, "over") == {("over",), ("##o", "##v", "##er")}
    assert written(tokenizer, "the") == {("the",)}, "no word goes on with a t here"


def test_special_tokens_are_words_too() -> None:
    tokenizer = vocabulary_tokenizer("gemma")
    assert [106] in tokenizer.word_forms("<end_of_turn>")
    # The model's own beginning of a text is no part of a word.
    assert all(2 not in form for form in tokenizer.word_forms("foo"))


def test_no_forms_of_what_has_no_tokens(smollm2: Tokenizer) -> None:
    assert smollm2.word_forms("\x04") == smollm2.word_forms(" \x04") == smollm2.word_forms("a\x04b") == []
    assert vocabulary_tokenizer("bert-bge").word_forms("𓂀") == []
    assert vocabulary_tokenizer("bert-bge").word_forms("\n") == []
    assert vocabulary_tokenizer("bert-bge").word_forms("dog [UNK]")


def test_spaces_alone_are_a_word() -> None:
    assert written(vocabulary_tokenizer("llama-bpe"), " ") == {("Ġ",), ("ĠĠ",)}
    assert ("▁",) in written(vocabulary_tokenizer("llama-spm"), " ")


def test_a_vocabulary_that_puts_a_space_before_every_text() -> None:
    backend = BACKENDS["byte level"]()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None)
    assert {("Ġhello",), ("hello",)} <= written(tokenizer, "hello")


def test_where_no_anchor_keeps_its_tokens() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "foo": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(backend, special_tokens={}, chat_template=None)
    assert tokenizer.word_forms("foo") == [[2]]


def test_lone_surrogates_are_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        smollm2.word_forms("a\ud800")
