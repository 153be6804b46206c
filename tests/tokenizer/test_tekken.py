"""Mistral's Tekken vocabulary, as a GGUF file, against tiktoken with ranks and expression of the original file."""

import json
from base64 import b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import regex
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from pelton.loader.gguf.file import GGUFFile
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.from_gguf import tokenizer_from_gguf
from tests.support.downloads import mistral_file
from tests.support.gguf_file import write_file
from tests.tokenizer.byte_level import LETTERS, cuts
from tests.tokenizer.corpus import CORPUS

# Version 3 of the format names no special tokens; readers know these, and more that no test needs.
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
_, BOS, EOS, INST, END_INST = range(len(SPECIAL))


class Tekken:
    """A Tekken file in tiktoken's hands: the special tokens have the first ids, then come the words by their rank."""

    def __init__(self, path: Path) -> None:
        state = json.loads(path.read_text())
        config = state["config"]
        self.pattern: str = config["pattern"]
        self.num_special: int = config["default_num_special_tokens"]
        # The file lists more words than the vocabulary has.
        entries = state["vocab"][: config["default_vocab_size"] - self.num_special]
        self.words = [b64decode(entry["token_bytes"]) for entry in entries]
        ranks = {word: entry["rank"] for word, entry in zip(self.words, entries, strict=True)}
        self._encoding = tiktoken.Encoding(
            path.stem, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens={}, explicit_n_vocab=len(entries)
        )

    def encode(self, text: str) -> list[int]:
        """Without special tokens, and reading none in the text."""
        return [self.num_special + rank for rank in self._encoding.encode_ordinary(text)]

    def decode(self, token_ids: Iterable[int]) -> str:
        """Without special tokens."""
        return self._encoding.decode([i - self.num_special for i in token_ids if i >= self.num_special])


def written(data: bytes) -> str:
    return "".join(LETTERS[byte] for byte in data)


def metadata(reference: Tekken) -> dict[str, Any]:
    """What a converter makes of a Tekken file: the special tokens first, and merges in the order of the ranks."""
    known = set(reference.words)
    merges = [
        f"{written(word[:cut])} {written(word[cut:])}"
        for word in reference.words
        for cut in range(1, len(word))
        if word[:cut] in known and word[cut:] in known
    ]
    special = SPECIAL + [f"<SPECIAL_{token_id}>" for token_id in range(len(SPECIAL), reference.num_special)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "tekken",
        "tokenizer.ggml.tokens": special + [written(word) for word in reference.words],
        "tokenizer.ggml.token_type": [3] * len(special) + [1] * len(reference.words),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
    }


Both = tuple[Tekken, Tokenizer]


@pytest.fixture(scope="module", params=["240911", pytest.param("240718", marks=pytest.mark.slow)])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    reference = Tekken(mistral_file(f"tekken_{request.param}.json"))
    file = write_file(tmp_path_factory.mktemp("tekken") / "tekken.gguf", "llama", metadata(reference), {})
    return reference, tokenizer_from_gguf(GGUFFile(file).metadata)


def test_agrees_on_the_corpus(both: Both) -> None:
    reference, tokenizer = both
    for text in CORPUS.values():
        if "[INST]" in text:
            # The reference reads no special tokens in texts.
            continue
        token_ids = tokenizer.encode(text)
        assert token_ids == [BOS, *reference.encode(text)], text
        assert tokenizer.decode(token_ids) == text == reference.decode(token_ids)


@given(st.text())
def test_agrees_on_any_text(both: Both, text: str) -> None:
    reference, tokenizer = both
    assert tokenizer.encode(text) == [BOS, *reference.encode(text)]


def test_cuts_as_the_file_says(both: Both) -> None:
    reference, _ = both
    for text in CORPUS.values():
        assert cuts("tekken", text) == [match.group() for match in regex.finditer(reference.pattern, text)], text


def test_special_tokens(both: Both) -> None:
    reference, tokenizer = both
    assert tokenizer.vocab_size == reference.num_special + len(reference.words) == 131072
    inside = reference.encode(" Hi ")
    assert tokenizer.encode("<s>[INST] Hi [/INST]") == [BOS, INST, *inside, END_INST]
    assert tokenizer.decode([BOS, INST, *inside, END_INST]) == " Hi "
