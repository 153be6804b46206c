from typing import Any

import numpy as np
import pytest

from pelton.tokenizer.from_gguf import tokenizer_from_gguf

METADATA: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "<tool>", "a", "b", "Ġ", "ab", "1"],
    "tokenizer.ggml.token_type": np.array([2, 3, 4, 1, 1, 1, 1, 5], np.int32),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True,
}


def test_reads_token_types_and_the_beginning_of_sequence() -> None:
    tokenizer = tokenizer_from_gguf(METADATA)
    assert tokenizer.encode("ab<tool>a 11<s>") == [1, 6, 2, 3, 5, 7, 7, 1]
    assert tokenizer.encode("<s>ab") == [1, 6]
    assert tokenizer.decode([0, 1, 6, 2]) == "ab<tool>"


def test_token_types_are_optional() -> None:
    metadata = {key: value for key, value in METADATA.items() if key != "tokenizer.ggml.token_type"}
    assert tokenizer_from_gguf(metadata).encode("ab") == [1, 6]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "llama"}, "model is 'llama', and Pelton reads only 'gpt2'"),
        ({"model": None}, "model is None"),
        ({"pre": "llama-bpe"}, "pre is 'llama-bpe', and Pelton reads only smollm"),
        ({"pre": None}, "pre is None"),
        ({"add_eos_token": True}, "add_eos_token"),
        ({"add_bos_token": 1}, "add_bos_token must be true or false"),
        ({"precompiled_charsmap": "x"}, "precompiled_charsmap"),
        ({"bos_token_id": 8}, "bos_token_id must be a token id below 8"),
        ({"tokens": None}, "tokens must be a list"),
        ({"tokens": ["a"] * 8}, "7 tokens twice"),
        ({"merges": ["a c"]}, "merges does not fit"),
        ({"merges": ["ab"]}, "merges does not fit"),
        ({"token_type": np.array([1, 1])}, "one number for each of the 8"),
        ({"token_type": np.array([1, 1, 1, 6, 1, 1, 1, 1])}, "holds 6"),
    ],
)
def test_refuses(changes: dict[str, Any], problem: str) -> None:
    changed = METADATA | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ValueError, match=problem):
        tokenizer_from_gguf({key: value for key, value in changed.items() if value is not None})


def test_refuses_a_file_without_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        tokenizer_from_gguf({"general.architecture": "llama"})
    with pytest.raises(ValueError, match="chat_template must be a string"):
        tokenizer_from_gguf(METADATA | {"tokenizer.chat_template": ["x"]})
