"""Small models in both checkpoint formats."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pelton.loader import Checkpoint, open_checkpoint
from tests.support.gguf_file import write_file
from tests.support.gguf_writer import gguf_tensors

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE = 2, 4, 2, 8
HIDDEN, INTERMEDIATE, VOCABULARY = 32, 64, 96

GGUF_VALUES: dict[str, Any] = {
    "llama.vocab_size": VOCABULARY,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.block_count": NUM_LAYERS,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": NUM_HEADS,
    "llama.attention.head_count_kv": NUM_KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": HEAD_SIZE,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.eos_token_id": 2,
}


@pytest.fixture(scope="session")
def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
    )
    return LlamaForCausalLM(config)


@pytest.fixture
def tiny_folder(tiny_model: LlamaForCausalLM, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tiny_model.save_pretrained(folder)
    return folder


@pytest.fixture
def edit_config(tiny_folder: Path) -> Callable[..., Path]:
    """Change keys of the folder's config.json; None takes a key out, "null" makes it null."""

    def edit(changes: Mapping[str, Any]) -> Path:
        path = tiny_folder / "config.json"
        config = json.loads(path.read_text())
        for key, value in changes.items():
            config.pop(key, None)
            if value is not None:
                config[key] = None if value == "null" else value
        path.write_text(json.dumps(config))
        return tiny_folder

    return edit


@pytest.fixture
def make_gguf(tiny_model: LlamaForCausalLM, tmp_path: Path) -> Callable[..., Path]:
    """The tiny model as a GGUF file, with changed metadata (None takes a key out) and tensors."""

    def make(
        changes: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray | None] | None = None,
        architecture: str = "llama",
    ) -> Path:
        merged = {**gguf_tensors(tiny_model), **(tensors or {})}
        present = {name: array for name, array in merged.items() if array is not None}
        return write_file(tmp_path / "tiny.gguf", architecture, {**GGUF_VALUES, **(changes or {})}, present)

    return make


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return open_checkpoint("smollm2")
