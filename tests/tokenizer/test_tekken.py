"""Mistral's Tekken vocabulary, as a GGUF file, against mistral_common."""

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import mistral_common
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from pelton.loader.gguf.file import GGUFFile
from pelton.tokenizer import Tokenizer
from pelton.tokenizer.from_gguf import tokenizer_from_gguf
from tests.tokenizer.byte_level import LETTERS, cuts
from tests.tokenizer.corpus import CORPUS

FOLDER = Path(mistral_common.__file__).parent / "data"
BOS, EOS = 1, 2


def written(data: bytes) -> str:
    return "".join(LETTERS[byte] for byte in data)


def metadata(path: Path, reference: Tekkenizer) -> dict[str, Any]:
    """What a converter makes of a Tekken file: the special tokens first, and merges in the order of the ranks."""
    state = json.loads(path.read_text())
    num_special = reference.num_special_tokens
    words = [b64decode(entry["token_bytes"]) for entry in state["vocab"][: reference.n_words - num_special]]
    known = set(words)
    merges = [
        f"{written(word[:cut])} {written(word[cut:])}"
        for word in words
        for cut in range(1, len(word))
        if word[:cut] in known and word[cut:] in known
    ]
    special = [reference.id_to_piece(token_id) for token_id in range(num_special)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "tekken",
        "tokenizer.ggml.tokens": special + [written(word) for word in words],
        "tokenizer.ggml.token_type": [3] * num_special + [1] * len(words),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
    }


def written_file(path: Path, entries: Mapping[str, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in entries.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        else:
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=["240911", pytest.param("240718", marks=pytest.mark.slow)])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tekkenizer, Tokenizer]:
    path = FOLDER / f"tekken_{request.param}.json"
    reference = Tekkenizer.from_file(path)
    file = written_file(tmp_path_factory.mktemp("tekken") / "tekken.gguf", metadata(path, reference))
    return reference, tokenizer_from_gguf(GGUFFile(file).metadata)


def test_agrees_on_the_corpus(both: tuple[Tekkenizer, Tokenizer]) -> None:
    reference, tokenizer = both
    for text in CORPUS.values():
        if "[INST]" in text:
            # The reference reads no special tokens in texts.
            continue
        token_ids = tokenizer.encode(text)
        assert token_ids == reference.encode(text, bos=True, eos=False), text
        assert tokenizer.decode(token_ids) == text
        assert tokenizer.decode(token_ids) == reference.decode(token_ids, SpecialTokenPolicy.IGNORE)


@given(st.text())
def test_agrees_on_any_text(both: tuple[Tekkenizer, Tokenizer], text: str) -> None:
    reference, tokenizer = both
    assert tokenizer.encode(text) == reference.encode(text, bos=True, eos=False)


def test_cuts_as_the_file_says() -> None:
    expression = json.loads((FOLDER / "tekken_240911.json").read_text())["config"]["pattern"]
    for text in CORPUS.values():
        assert cuts("tekken", text) == [match.group() for match in regex.finditer(expression, text)], text


def test_special_tokens(both: tuple[Tekkenizer, Tokenizer]) -> None:
    reference, tokenizer = both
    assert tokenizer.vocab_size == reference.n_words
    inst, end = reference.get_special_token("[INST]"), reference.get_special_token("[/INST]")
    inside = reference.encode(" Hi ", bos=False, eos=False)
    assert tokenizer.encode("<s>[INST] Hi [/INST]") == [BOS, inst, *inside, end]
    assert tokenizer.decode([BOS, inst, *inside, end]) == " Hi "
