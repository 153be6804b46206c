from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pelton.config import DecoderConfig
from pelton.loader import Checkpoint, open_checkpoint

MakeGGUF = Callable[..., Path]


def test_reads_smollm2(smollm2: Checkpoint) -> None:
    assert smollm2.config == DecoderConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        rms_norm_eps=float(np.float32(1e-5)),
        rope_theta=100000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
        layer_windows=(None,) * 30,
    )


def test_reads_optional_keys(make_gguf: MakeGGUF) -> None:
    changes = {
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.eot_token_id": 7,
    }
    config = open_checkpoint(str(make_gguf(changes))).config
    assert config.head_size == 16
    assert config.eos_token_ids == (2, 7)
    assert not config.tie_word_embeddings


def test_has_defaults_for_keys_that_older_files_lack(make_gguf: MakeGGUF) -> None:
    changes = {
        "llama.vocab_size": None,
        "llama.attention.head_count_kv": None,
        "llama.rope.freq_base": None,
        "llama.rope.dimension_count": None,
        "tokenizer.ggml.eos_token_id": None,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
    }
    config = open_checkpoint(str(make_gguf(changes, {"output.weight": None}))).config
    assert (config.vocab_size, config.num_kv_heads, config.rope_theta) == (3, 4, 10000.0)
    assert config.eos_token_ids == ()
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"llama.rope.scaling.type": "linear"}, r"llama\.\* metadata, .*rope.scaling.type"),
        ({"llama.rope.scaling.factor": 4.0}, "rope.scaling.factor"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.block_count": None}, "block_count is missing"),
        ({"llama.block_count": 2**32 - 1}, "4294967295 layers"),
        ({"llama.block_count": 0}, "block_count must be an integer of at least 1"),
        ({"llama.block_count": 2.5}, "block_count must be an integer"),
        ({"llama.block_count": True}, "block_count must be a number"),
        ({"llama.context_length": 2**31}, "the context length is 2147483648"),
        ({"llama.context_length": "long"}, "context_length must be a number"),
        ({"llama.attention.head_count_kv": [2, 2]}, "head_count_kv must be a number"),
        ({"llama.attention.head_count_kv": 3}, "num_heads"),
        ({"llama.embedding_length": 33}, "not a multiple of 4"),
        ({"llama.rope.dimension_count": 4}, "rope.dimension_count is 4, and should be head_size, 8"),
        ({"llama.rope.dimension_count": [8, 8]}, "rope.dimension_count"),
        ({"llama.attention.value_length": 16}, "value_length is 16"),
        ({"llama.attention.key_length": 16}, "rope.dimension_count is 8"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "rms_epsilon must be positive"),
        ({"llama.rope.freq_base": float("inf")}, "freq_base must be positive"),
        ({"tokenizer.ggml.eos_token_id": 96}, "token 96 is not below 96"),
        ({"tokenizer.ggml.eos_token_id": "x"}, "eos_token_id must be an integer"),
        ({"general.type": "adapter"}, "general.type"),
        ({"general.quantization_version": 1}, "quantization_version"),
        ({"general.quantization_version": [2, 2]}, "quantization_version"),
        ({"split.count": 2}, "split.count"),
    ],
)
def test_refuses(changes: dict[str, Any], problem: str, make_gguf: MakeGGUF) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        open_checkpoint(str(make_gguf(changes)))
    assert "tiny.gguf" in str(refusal.value)


def test_refuses_other_architectures(make_gguf: MakeGGUF) -> None:
    with pytest.raises(ValueError, match=r"general.architecture is 'qwen2', and Pelton runs llama"):
        open_checkpoint(str(make_gguf(architecture="qwen2")))
