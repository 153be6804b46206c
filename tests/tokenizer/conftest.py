"""Tokenizers: the real one, and small trained ones of other kinds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from pelton.loader import open_checkpoint
from pelton.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.backends import BACKENDS, byte_level


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return load_tokenizer(open_checkpoint("smollm2"))


@pytest.fixture(scope="session", params=BACKENDS)
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(BACKENDS[request.param](), special_tokens={}, chat_template=None)


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder with tokenizer.json and, if `config` is not None, tokenizer_config.json.

    `template` is what tokenizer.json puts around a text, such as "<s> $A"; None is no post-processor at all.
    """

    def make(config: dict[str, Any] | None, template: str | None = None) -> Path:
        backend = byte_level()
        if template is not None:
            special = [(token, token_id) for token, token_id in (("<s>", 1), ("</s>", 2)) if token in template]
            backend.post_processor = processors.TemplateProcessing(template, f"{template} $B", special)
        backend.save(str(tmp_path / "tokenizer.json"))
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return make
