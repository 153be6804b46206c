"""Small models in both checkpoint formats."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pelton.loader import Checkpoint, open_checkpoint
from pelton.loader.weights import WeightNames

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


def write_gguf(
    path: Path, values: Mapping[str, Any], tensors: Mapping[str, np.ndarray], architecture: str = "llama"
) -> Path:
    """A GGUF file, written by the format's own library. None as a value leaves the key out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, array in tensors.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF's order of query and key rows: by turns from the first and the second half of a head."""
    rows = []
    for head in np.split(weight, num_heads):
        half = len(head) // 2
        for d in range(half):
            rows += [head[d], head[half + d]]
    return np.stack(rows)


class FakeParameter:
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self.array: np.ndarray | None = None

    def load(self, array: np.ndarray) -> None:
        assert array.shape == self.shape
        assert array.dtype == np.float32
        assert self.array is None
        self.array = array


def llama_parameters(checkpoint: Checkpoint) -> dict[str, FakeParameter]:
    """What a llama model of this configuration asks for."""
    config = checkpoint.config
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (config.vocab_size, hidden), "norm": (hidden,)}
    if not config.tie_word_embeddings:
        shapes["lm_head"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        shapes |= {
            f"layers.{layer}.attention_norm": (hidden,),
            f"layers.{layer}.attention.q": (queries, hidden),
            f"layers.{layer}.attention.k": (keys, hidden),
            f"layers.{layer}.attention.v": (keys, hidden),
            f"layers.{layer}.attention.o": (hidden, queries),
            f"layers.{layer}.mlp_norm": (hidden,),
            f"layers.{layer}.mlp.gate": (intermediate, hidden),
            f"layers.{layer}.mlp.up": (intermediate, hidden),
            f"layers.{layer}.mlp.down": (hidden, intermediate),
        }
    return {name: FakeParameter(name, shape) for name, shape in shapes.items()}


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


@pytest.fixture(scope="session")
def tiny_gguf_tensors(tiny_model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The tiny model's tensors under GGUF's names and in GGUF's order of rows."""
    state = {name: tensor.numpy() for name, tensor in tiny_model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for layer in range(NUM_LAYERS):
        source = f"model.layers.{layer}."
        tensors |= {
            f"blk.{layer}.attn_norm.weight": state[source + "input_layernorm.weight"],
            f"blk.{layer}.attn_q.weight": interleave(state[source + "self_attn.q_proj.weight"], NUM_HEADS),
            f"blk.{layer}.attn_k.weight": interleave(state[source + "self_attn.k_proj.weight"], NUM_KV_HEADS),
            f"blk.{layer}.attn_v.weight": state[source + "self_attn.v_proj.weight"],
            f"blk.{layer}.attn_output.weight": state[source + "self_attn.o_proj.weight"],
            f"blk.{layer}.ffn_norm.weight": state[source + "post_attention_layernorm.weight"],
            f"blk.{layer}.ffn_gate.weight": state[source + "mlp.gate_proj.weight"],
            f"blk.{layer}.ffn_up.weight": state[source + "mlp.up_proj.weight"],
            f"blk.{layer}.ffn_down.weight": state[source + "mlp.down_proj.weight"],
        }
    return tensors


@pytest.fixture
def make_gguf(tiny_gguf_tensors: dict[str, np.ndarray], tmp_path: Path) -> Callable[..., Path]:
    """The tiny model as a GGUF file, with changed metadata (None takes a key out) and tensors."""

    def make(
        changes: Mapping[str, Any] | None = None,
        tensors: Mapping[str, np.ndarray | None] | None = None,
        architecture: str = "llama",
    ) -> Path:
        merged = {**tiny_gguf_tensors, **(tensors or {})}
        present = {name: array for name, array in merged.items() if array is not None}
        return write_gguf(tmp_path / "tiny.gguf", {**GGUF_VALUES, **(changes or {})}, present, architecture)

    return make


@pytest.fixture(scope="session")
def smollm2() -> Checkpoint:
    return open_checkpoint("smollm2")


@pytest.fixture
def parameters() -> Callable[[Checkpoint], dict[str, FakeParameter]]:
    return llama_parameters


@pytest.fixture
def hf_name() -> Callable[[Checkpoint, str], str]:
    return lambda checkpoint, name: WeightNames(checkpoint.config, "hf").foreign(name)
