"""The test data that `scripts/setup test` fetches."""

import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "test-data"


def gemma_gguf() -> Path:
    """Gemma 3 270M, the base model, in Q4_K_M."""
    return _existing(FOLDER / "gemma-3-270m-q4_k_m.gguf")


def vocab_gguf(name: str) -> Path:
    """One of llama.cpp's vocabularies, such as `llama-bpe`; beside most of them are texts (.inp) and ids (.out)."""
    return _existing(FOLDER / "vocabs" / f"ggml-vocab-{name}.gguf")


def mistral_file(name: str) -> Path:
    """One of Mistral's vocabularies as published: tekken_*.json, *.model.v*."""
    return _existing(FOLDER / "mistral" / name)


def json_schema_suite() -> Path:
    """The folder of the JSON-Schema-Test-Suite, with `tests/draft7`, `tests/draft2020-12` and `remotes`."""
    return _existing(FOLDER / "json-schema-suite" / "LICENSE").parent


def _existing(path: Path) -> Path:
    # A failure, and not a skip: nobody may believe that these tests have run.
    assert path.is_file(), f"{path} is missing; fetch it with: {sys.executable} scripts/fetch_test_data.py {FOLDER}"
    return path
