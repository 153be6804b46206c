"""BERT's vocabulary as a GGUF file has it, against transformers' own BertTokenizer, which is plain Python."""

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from pelton.tokenizer.from_gguf import tokenizer_from_gguf
from tests.support.vocabularies import vocabulary_metadata, vocabulary_tokenizer
from tests.tokenizer.corpus import CORPUS


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerLegacy:
    metadata = vocabulary_metadata("bert-bge")
    words = [
        token[1:] if token[0] == "▁" else token if token[0] == "[" and token[-1] == "]" else f"##{token}"
        for token in metadata["tokenizer.ggml.tokens"]
    ]
    path: Path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("".join(f"{word}\n" for word in words))
    return BertTokenizerLegacy(str(path))


def assigned(text: str) -> str:
    """Without the characters that this Python does not know; the reference drops them."""
    return "".join(char for char in text if unicodedata.category(char) != "Cn")


def test_agrees_on_the_corpus(reference: BertTokenizerLegacy) -> None:
    tokenizer = vocabulary_tokenizer("bert-bge")
    for name, text in ((name, assigned(text)) for name, text in CORPUS.items()):
        assert tokenizer.encode(text) == reference.encode(text), name


@given(st.text().map(assigned))
@settings(max_examples=300)
def test_agrees_on_any_text(reference: BertTokenizerLegacy, text: str) -> None:
    assert vocabulary_tokenizer("bert-bge").encode(text) == reference.encode(text)


def test_special_tokens(reference: BertTokenizerLegacy) -> None:
    tokenizer = vocabulary_tokenizer("bert-bge")
    assert tokenizer.encode("Héllo [MASK]!") == [
        101,
        *reference.encode("hello", add_special_tokens=False),
        103,
        999,
        102,
    ]
    assert tokenizer.encode("[CLS]hello[SEP]") == tokenizer.encode("hello")
    assert tokenizer.decode(tokenizer.encode("embeddings are fun")) == "embeddings are fun"
    assert tokenizer.special_token_id("sep_token") == 102


METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": ["[UNK]", "[CLS]", "[SEP]", "▁é", "▁e", "▁É", "a", "▁[", "▁]"],
    "tokenizer.ggml.token_type": np.array([3, 3, 3, 1, 1, 1, 1, 1, 1]),
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.cls_token_id": 1,
    "tokenizer.ggml.seperator_token_id": 2,
}


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        ({}, "Éa e É", [1, 4, 6, 4, 4, 2]),
        ({"normalizer.strip_accents": False}, "É", [1, 3, 2]),
        ({"normalizer.lowercase": False}, "Éé", [1, 0, 2]),
        ({"normalizer.lowercase": False}, "É é", [1, 5, 3, 2]),
        ({"add_sep_token": False}, "e", [1, 4]),
        ({"add_bos_token": False, "add_sep_token": False}, "e[]", [4, 7, 8]),
        # Newer converters say eos where they mean the separator.
        ({"add_eos_token": True, "eos_token_id": 2}, "e", [1, 4, 2]),
    ],
)
def test_options_of_the_file(changes: dict[str, Any], text: str, expected: list[int]) -> None:
    metadata = METADATA | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    assert tokenizer_from_gguf(metadata).encode(text) == expected
