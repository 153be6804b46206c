"""Gemma 3 270M as transformers runs it, and text for it."""

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.initialization import no_init_weights

from tests.support.gguf_file import dequantized_tensors

NUM_LAYERS = 18
WINDOW = 512
BOS_TOKEN_ID = 2


def gemma_reference(path: Path) -> Gemma3ForCausalLM:
    """The file's tensors, dequantized by the gguf package, as float32: some 1.1 GB."""
    config = Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        query_pre_attn_scalar=256,
        sliding_window=WINDOW,
        layer_types=["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(NUM_LAYERS)],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
    )
    with no_init_weights():
        model = Gemma3ForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, NUM_LAYERS)
    own_names = {names.get_name(name, try_suffixes=(".weight",)): name for name in model.state_dict()}
    state = {}
    for gguf_name, array in dequantized_tensors(path):
        name = own_names[gguf_name]
        # The file has the factors of norms; transformers has what is to be added to one.
        state[name] = torch.from_numpy(array - np.float32(1.0) if name.endswith("norm.weight") else array)
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    return model.eval()


@cache
def passages() -> str:
    """Text of more than 1,700 tokens, none of it twice: beginnings of works in the public domain, and some code."""
    return Path(__file__).with_name("passages.txt").read_text(encoding="utf-8")
