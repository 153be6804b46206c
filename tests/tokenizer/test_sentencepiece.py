"""SentencePiece vocabularies as GGUF files have them, against the sentencepiece library."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.from_gguf import tokenizer_from_gguf
from tests.support.downloads import mistral_file
from tests.support.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    metadata_of,
    model_of,
)
from tests.support.vocabularies import vocabulary_metadata, vocabulary_tokenizer
from tests.tokenizer.corpus import CORPUS, FRAGMENTS, LITERAL_SPACE_SYMBOL

Both = tuple[SentencePieceProcessor, Tokenizer]


@cache
def of_mistral(name: str) -> Both:
    reference = SentencePieceProcessor(model_file=str(mistral_file(name)))
    return reference, tokenizer_from_gguf(metadata_of(reference))


@cache
def of_vocabulary(name: str) -> Both:
    metadata = vocabulary_metadata(name)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    return model_of(metadata, add_dummy_prefix=prefix), vocabulary_tokenizer(name)


MODELS: dict[str, Callable[[], Both]] = {
    "mistral v1": lambda: of_mistral("tokenizer.model.v1"),
    "mistral v2": lambda: of_mistral("mistral_instruct_tokenizer_240216.model.v2"),
    "mistral v3": lambda: of_mistral("mistral_instruct_tokenizer_240323.model.v3"),
    "mistral v7": lambda: of_mistral("mistral_instruct_tokenizer_241114.model.v7"),
    "mistral v7m1": lambda: of_mistral("mistral_instruct_tokenizer_241114.model.v7m1"),
    "llama 2": lambda: of_vocabulary("llama-spm"),
    "baichuan": lambda: of_vocabulary("baichuan"),
    "gemma 3": lambda: of_vocabulary("gemma"),
}
SLOW = {"mistral v2", "mistral v7", "mistral v7m1"}


@pytest.fixture(scope="module", params=[pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in MODELS])
def both(request: pytest.FixtureRequest) -> Both:
    return MODELS[request.param]()


def plain(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_agrees_on_the_corpus(both: Both) -> None:
    reference, tokenizer = both
    for name, text in CORPUS.items():
        # The library does not read special tokens in texts.
        if name != "look like special tokens":
            assert plain(tokenizer, text) == reference.encode(text), name


def test_agrees_on_runs_of_one_character(both: Both) -> None:
    reference, tokenizer = both
    for char in "a =-\n_*.#x0\t":
        for length in (*range(1, 40), 63, 64, 65, 100):
            text = "q" + char * length + "z"
            assert plain(tokenizer, text) == reference.encode(text), (char, length)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=15).map("".join))
@settings(max_examples=400)
def test_agrees_on_mixtures(both: Both, text: str) -> None:
    reference, tokenizer = both
    assert plain(tokenizer, text) == reference.encode(text)


@given(st.text(st.characters(codec="utf-8", exclude_characters="▁")))
@settings(max_examples=200)
def test_agrees_on_any_text(both: Both, text: str) -> None:
    reference, tokenizer = both
    token_ids = plain(tokenizer, text)
    assert token_ids == reference.encode(text)
    assert tokenizer.decode(token_ids) == text == reference.decode(token_ids)


def test_the_symbol_of_a_space_is_a_space() -> None:
    reference, tokenizer = of_vocabulary("llama-spm")
    assert plain(tokenizer, LITERAL_SPACE_SYMBOL) == reference.encode(LITERAL_SPACE_SYMBOL)


@given(st.lists(st.integers(0, 31999), max_size=12))
def test_decodes_valid_bytes_like_the_library(token_ids: list[int]) -> None:
    reference, tokenizer = of_vocabulary("llama-spm")
    text = tokenizer.decode(token_ids)
    if "\ufffd" not in text and not {0, 1, 2} & set(token_ids):
        assert text == reference.decode(token_ids)


def test_special_tokens_of_llama() -> None:
    _, tokenizer = of_vocabulary("llama-spm")
    inside = plain(tokenizer, "[INST] Hi [/INST]")
    assert tokenizer.encode("<s>[INST] Hi [/INST]") == [1, *inside]
    # What follows a special token begins like a text.
    assert tokenizer.encode("a</s>b") == [1, *plain(tokenizer, "a"), 2, *plain(tokenizer, "b")]
    assert tokenizer.decode([1, *inside, 2]) == "[INST] Hi [/INST]"
    assert tokenizer.decode([1, *inside], skip_special_tokens=False) == "<s> [INST] Hi [/INST]"
    assert plain(tokenizer, "<unk>") == [0]


def test_the_space_before_a_word_shows_in_its_token() -> None:
    _, tokenizer = of_vocabulary("llama-spm")
    (hello,) = plain(tokenizer, "Hello")
    assert tokenizer.decode([hello]) == "Hello"
    assert tokenizer.token_text(hello) == " Hello"
    assert tokenizer.token_text(tokenizer._backend.token_to_id("<0x41>")) == "A"
    assert tokenizer.token_text(tokenizer._backend.token_to_id("<0xE6>")) == "\ufffd"
    assert tokenizer.token_text(1) == "<s>"


def test_the_vocabulary_of_gemma() -> None:
    tokenizer = vocabulary_tokenizer("gemma")
    assert tokenizer.vocab_size == 262144
    assert tokenizer.encode("<start_of_turn>user\n") == [2, 105, 2364, 107]
    assert tokenizer.decode(tokenizer.encode("  two  spaces")) == "  two  spaces"
    assert tokenizer.special_token_id("eos_token") == 1


PIECES = [
    ("<unk>", 0.0, UNKNOWN),
    ("<s>", 0.0, CONTROL),
    ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
    ("<tool>", 0.0, USER_DEFINED),
    *((token, -float(rank), NORMAL) for rank, token in enumerate(["▁▁", "ba", "ab", "aba", "▁a", "▁", "a", "b", "c"])),
]


def small_metadata(**changes: Any) -> dict[str, Any]:
    tokens, scores, types = zip(*PIECES, strict=True)
    entries = {
        "model": "llama",
        "tokens": list(tokens),
        "scores": np.array(scores, np.float32),
        "token_type": np.array(types, np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in entries.items() if value is not None}


@pytest.mark.parametrize("add_space_prefix", [True, False])
@pytest.mark.parametrize("remove_extra_whitespaces", [True, False])
@given(text=st.text("ab c\n"))
def test_options_of_the_file(add_space_prefix: bool, remove_extra_whitespaces: bool, text: str) -> None:
    options = {"add_space_prefix": add_space_prefix, "remove_extra_whitespaces": remove_extra_whitespaces}
    metadata = small_metadata(**options)
    reference = model_of(metadata, add_dummy_prefix=add_space_prefix, remove_extra_whitespaces=remove_extra_whitespaces)
    assert plain(tokenizer_from_gguf(metadata), text) == reference.encode(text)


def test_user_defined_tokens_are_found_first() -> None:
    tokenizer = tokenizer_from_gguf(small_metadata(add_space_prefix=False))
    tool = tokenizer._backend.token_to_id("<tool>")
    assert plain(tokenizer, "a<tool>b") == [*plain(tokenizer, "a"), tool, *plain(tokenizer, "b")]
    assert tokenizer.decode([tool]) == "<tool>"


@pytest.mark.parametrize("kind", [UNUSED, BYTE, CONTROL, USER_DEFINED])
def test_only_normal_tokens_come_out_of_merges(kind: int) -> None:
    metadata = small_metadata(add_space_prefix=False)
    ab = metadata["tokenizer.ggml.tokens"].index("ab")
    metadata["tokenizer.ggml.token_type"][ab] = kind
    tokenizer = tokenizer_from_gguf(metadata)
    spelled_out = kind in (CONTROL, USER_DEFINED)
    assert (ab in plain(tokenizer, "ab")) == spelled_out


def test_without_byte_tokens_the_unknown_token_stands_for_the_rest() -> None:
    few = [0, 1, 2, *range(len(PIECES) - 9, len(PIECES))]
    metadata = small_metadata()
    for key in ("tokens", "scores", "token_type"):
        values = metadata[f"tokenizer.ggml.{key}"]
        metadata[f"tokenizer.ggml.{key}"] = [values[i] for i in few] if key == "tokens" else values[few]
    tokenizer = tokenizer_from_gguf(metadata)
    # Several unknown characters in a row are one unknown token.
    assert plain(tokenizer, "aéüb") == [*plain(tokenizer, "a"), 0, tokenizer._backend.token_to_id("b")]


@pytest.mark.parametrize(
    ("flags", "suffix"),
    [({}, []), ({"add_eos_token": True}, [2]), ({"add_eos_token": False, "add_sep_token": True}, [])],
)
def test_the_end_of_a_text(flags: dict[str, bool], suffix: list[int]) -> None:
    tokenizer = tokenizer_from_gguf(small_metadata(**flags))
    inside = plain(tokenizer, "ab")
    assert tokenizer.encode("ab") == [1, *inside, *suffix]
    assert tokenizer.encode("ab</s>") == [1, *inside, 2]
    assert tokenizer.encode("<s>ab</s>") == [1, *inside, 2]
