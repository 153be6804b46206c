"""A two-layer Llama with random weights and SmolLM2's tokenizer: an engine of its own in a few milliseconds a step."""

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from safetensors.numpy import save_file

from pelton.loader import open_checkpoint
from pelton.tokenizer import Tokenizer, load_tokenizer

VOCAB_SIZE, HIDDEN, INTERMEDIATE, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS = 49152, 16, 32, 2, 2, 1
CONTEXT_LENGTH = 256


@cache
def smollm2_tokenizer() -> Tokenizer:
    return load_tokenizer(open_checkpoint("smollm2"))


def write_tiny_llama(folder: Path) -> Path:
    """Write it as a Hugging Face folder, and return that."""
    tokenizer = smollm2_tokenizer()
    tokenizer._backend.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "<|im_end|>", "chat_template": tokenizer._own_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": VOCAB_SIZE,
                "hidden_size": HIDDEN,
                "intermediate_size": INTERMEDIATE,
                "num_hidden_layers": NUM_LAYERS,
                "num_attention_heads": NUM_HEADS,
                "num_key_value_heads": NUM_KV_HEADS,
                "rms_norm_eps": 1e-5,
                "max_position_embeddings": CONTEXT_LENGTH,
                "tie_word_embeddings": True,
                "eos_token_id": tokenizer.special_token_id("eos_token"),
            }
        )
    )
    save_file(_weights(), str(folder / "model.safetensors"))
    return folder


@cache
def tiny_llama() -> str:
    """The folder's path, the same as long as the process lives."""
    folder = mkdtemp(prefix="tiny-llama-")
    atexit.register(shutil.rmtree, folder)
    return str(write_tiny_llama(Path(folder)))


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    keys = HIDDEN // NUM_HEADS * NUM_KV_HEADS

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0.0, columns**-0.5, (rows, columns)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(VOCAB_SIZE, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for layer in range(NUM_LAYERS):
        weights |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": np.ones(HIDDEN, np.float32),
                "self_attn.q_proj": matrix(HIDDEN, HIDDEN),
                "self_attn.k_proj": matrix(keys, HIDDEN),
                "self_attn.v_proj": matrix(keys, HIDDEN),
                "self_attn.o_proj": matrix(HIDDEN, HIDDEN),
                "post_attention_layernorm": np.ones(HIDDEN, np.float32),
                "mlp.gate_proj": matrix(INTERMEDIATE, HIDDEN),
                "mlp.up_proj": matrix(INTERMEDIATE, HIDDEN),
                "mlp.down_proj": matrix(HIDDEN, INTERMEDIATE),
            }.items()
        }
    return weights
