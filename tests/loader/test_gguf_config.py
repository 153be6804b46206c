import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pelton.config import DecoderConfig, LinearScaling, RopeConfig
from pelton.loader.gguf.config import read_gguf_config
from pelton.loader.gguf.file import GGUFFile, MetadataValue
from pelton.loader.hf.config import read_hf_config
from tests.support.downloads import gemma_gguf, vocab_gguf
from tests.support.gguf_file import write_file
from tests.support.hf_configs import HF_CONFIGS

Metadata = dict[str, MetadataValue]

NUM_LAYERS = 12
TENSOR_NAMES = frozenset({"output.weight", *(f"blk.{i}.attn_q.weight" for i in range(64))})

_SHAPE: dict[str, MetadataValue] = {
    "vocab_size": 96,
    "context_length": 128,
    "embedding_length": 32,
    "block_count": NUM_LAYERS,
    "feed_forward_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e6,
}


def metadata_of(architecture: str = "llama", without: tuple[str, ...] = (), **changes: Any) -> Metadata:
    """Metadata of a small model; keys in `changes` have `__` for `.` and no prefix, unless they have a known one."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    metadata: Metadata = {"general.architecture": architecture, "tokenizer.ggml.eos_token_id": 2}
    for name, value in {**_SHAPE, **named}.items():
        full = name if name.startswith(("general.", "tokenizer.", "adapter.")) else f"{architecture}.{name}"
        metadata[full] = value
    return {name: value for name, value in metadata.items() if not name.endswith(without or ("\0",))}


def read(metadata: Metadata, *more_tensors: str, without: frozenset[str] = frozenset()) -> DecoderConfig:
    return read_gguf_config(Path("tiny.gguf"), metadata, (TENSOR_NAMES | {*more_tensors}) - without)


def test_reads_every_field() -> None:
    rope = RopeConfig(1e6)
    assert read(metadata_of()) == DecoderConfig(
        architecture="llama",
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_layers=NUM_LAYERS,
        num_heads=4,
        num_kv_heads=2,
        head_size=8,
        rms_norm_eps=1e-5,
        rope=rope,
        sliding_rope=rope,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        eos_token_ids=(2,),
        layer_windows=(None,) * NUM_LAYERS,
        attention_scale=8**-0.5,
    )


def test_real_file_of_gemma_says_what_its_folder_says(tmp_path: Path) -> None:
    file = GGUFFile(gemma_gguf())
    config = read_gguf_config(file.path, file.metadata, file.tensors)
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIGS["Gemma 3 270M"]))
    of_folder = read_hf_config(tmp_path)
    # The file itself names only <eos>; <end_of_turn> is found in its vocabulary.
    assert config == dataclasses.replace(of_folder, rms_norm_eps=float(np.float32(1e-6)), eos_token_ids=(1, 106))


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("llama-bpe", {"num_kv_heads": 8, "rope": RopeConfig(5e5), "eos_token_ids": (128001, 128009)}),
        ("llama-spm", {"vocab_size": 32000, "rope": RopeConfig(1e4), "eos_token_ids": (2,)}),
        (
            "qwen2",
            {"architecture": "qwen2", "vocab_size": 151936, "attention_bias": True, "eos_token_ids": (151643, 151645)},
        ),
        (
            "deepseek-coder",
            {"rope": RopeConfig(1e5, LinearScaling(4.0)), "max_position_embeddings": 65536, "eos_token_ids": (32014,)},
        ),
    ],
)
def test_real_metadata(name: str, facts: dict[str, Any]) -> None:
    file = GGUFFile(vocab_gguf(name))
    config = read_gguf_config(file.path, file.metadata, TENSOR_NAMES)
    assert {field: getattr(config, field) for field in facts} == facts


def test_optional_keys() -> None:
    config = read(
        metadata_of(
            attention__key_length=16,
            attention__value_length=16,
            rope__dimension_count=16,
            attention__causal=True,
            expert_count=0,
            tensor_data_layout="Meta AI original pth",
            tokenizer__ggml__eot_token_id=7,
            tokenizer__ggml__eom_token_id=5,
        )
    )
    assert (config.head_size, config.attention_scale) == (16, 0.25)
    assert config.eos_token_ids == (2, 5, 7)


def test_defaults_for_keys_that_older_files_lack() -> None:
    metadata = metadata_of(
        without=("vocab_size", "head_count_kv", "freq_base", "eos_token_id"),
        tokenizer__ggml__tokens=["a", "b", "c"],
    )
    config = read(metadata, without=frozenset({"output.weight"}))
    assert (config.vocab_size, config.num_kv_heads, config.rope) == (3, 4, RopeConfig(1e4))
    assert config.eos_token_ids == ()
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("tensor", "biases"),
    [
        ("blk.0.attn_q.bias", (True, False, False)),
        ("blk.0.attn_v.bias", (True, False, False)),
        ("blk.0.attn_output.bias", (False, True, False)),
        ("blk.0.ffn_gate.bias", (False, False, True)),
        ("blk.0.ffn_down.bias", (False, False, True)),
    ],
)
def test_tensors_tell_the_biases_that_an_architecture_may_have(tensor: str, biases: tuple[bool, ...]) -> None:
    of_attention, of_output, of_mlp = biases
    for architecture, expected in {
        "llama": (of_attention, of_output, of_mlp),
        "qwen2": (True, False, False),
        "qwen3": (of_attention, of_output, False),
        "gemma3": (of_attention, of_output, False),
    }.items():
        config = read(metadata_of(architecture), tensor)
        assert (config.attention_bias, config.attention_output_bias, config.mlp_bias) == expected


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_without_tensors_of_biases_only_qwen2_has_them(architecture: str) -> None:
    config = read(metadata_of(architecture))
    expected = (architecture == "qwen2", False, False)
    assert (config.attention_bias, config.attention_output_bias, config.mlp_bias) == expected


def test_qwen3_has_its_own_head_size() -> None:
    config = read(metadata_of("qwen3", attention__key_length=16, attention__value_length=16))
    assert (config.head_size, config.attention_scale, config.attention_bias) == (16, 0.25, False)


GEMMA = {"attention__key_length": 16, "attention__value_length": 16, "attention__sliding_window": 8}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, ((8,) * 5 + (None,)) * 2),
        ({"attention__sliding_window_pattern": 3}, ((8, 8, None) * 4)),
        ({"attention__sliding_window_pattern": np.array([True, False] * 6)}, (8, None) * 6),
        ({"attention__sliding_window_pattern": np.array([False] * 12)}, (None,) * 12),
    ],
)
def test_windows_of_gemma(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert read(metadata_of("gemma3", **GEMMA, **changes)).layer_windows == windows
    # Without a window, a pattern says nothing.
    metadata = metadata_of("gemma3", without=("sliding_window",), **GEMMA, **changes)
    assert read(metadata).layer_windows == (None,) * 12


def test_options_of_gemma() -> None:
    changes = {
        "rope__freq_base_swa": 2e4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rope__scaling__type": "linear",
        "rope__scaling__factor": 8.0,
    }
    config = read(metadata_of("gemma3", **GEMMA, **changes))
    assert (config.rope, config.sliding_rope) == (RopeConfig(1e6, LinearScaling(8.0)), RopeConfig(2e4))
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    assert config.max_position_embeddings == 128
    config = read(metadata_of("gemma3", **GEMMA))
    assert (config.rope, config.sliding_rope) == (RopeConfig(1e6), RopeConfig(1e4))
    assert (config.attention_softcap, config.logit_softcap) == (None, None)
    assert config.attention_scale == 0.25


def test_the_largest_gemma_has_its_own_scale() -> None:
    shape = {"embedding_length": 5376, "attention__head_count": 32, "attention__head_count_kv": 16}
    metadata = metadata_of("gemma3", **GEMMA | {"attention__key_length": 128, "attention__value_length": 128}, **shape)
    assert read(metadata).attention_scale == 128**-0.5
    assert read(metadata | {"gemma3.block_count": 62}).attention_scale == 168**-0.5


def test_arrays_with_the_same_number_for_all_layers(tmp_path: Path) -> None:
    """Through a file, as the format's own library writes arrays."""
    values = {
        "gemma3.block_count": NUM_LAYERS,
        "gemma3.context_length": 128,
        "gemma3.vocab_size": 96,
        "gemma3.embedding_length": 32,
        "gemma3.attention.layer_norm_rms_epsilon": 1e-6,
        "gemma3.rope.freq_base": 1e6,
        "gemma3.feed_forward_length": [64] * NUM_LAYERS,
        "gemma3.attention.head_count": [4] * NUM_LAYERS,
        "gemma3.attention.head_count_kv": [2] * NUM_LAYERS,
        "gemma3.attention.sliding_window": 8,
        "gemma3.attention.sliding_window_pattern": [True, True, False] * 4,
        "tokenizer.ggml.tokens": ["<eos>", "<end_of_turn>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [3, 3, 1],
        "tokenizer.ggml.eos_token_id": 0,
    }
    path = write_file(tmp_path / "tiny.gguf", "gemma3", values, {})
    config = read(dict(GGUFFile(path).metadata))
    assert (config.intermediate_size, config.num_heads, config.num_kv_heads) == (64, 4, 2)
    assert config.layer_windows == (8, 8, None) * 4
    assert config.eos_token_ids == (0, 1)


@pytest.mark.parametrize(
    ("token", "ends"),
    [
        ("<|eot_id|>", True),
        ("<|eom_id|>", True),
        ("<|im_end|>", True),
        ("<end_of_turn>", True),
        ("<|end|>", True),
        ("<|end_of_turn|>", True),
        ("<|END_OF_TURN_TOKEN|>", True),
        ("<EOT>", True),
        ("<|endoftext|>", False),
        ("<|im_start|>", False),
    ],
)
def test_control_tokens_that_end_a_turn(token: str, ends: bool) -> None:
    tokens = ["a", "b", "</s>", token]
    for kind, found in ((3, ends), (1, False), (4, False)):
        types = np.array([1, 1, 3, kind], np.int32)
        config = read(metadata_of(tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=types))
        assert config.eos_token_ids == ((2, 3) if found else (2,))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rope__scaling__type": "longrope"}, r"llama\.\* metadata, rope.scaling.type is 'longrope', and Pelton supp"),
        ({"logit_scale": 8.0}, "does not know the key logit_scale, so it cannot honour it"),
        ({"attention__sliding_window": 4096}, "does not know the key attention.sliding_window"),
        ({"expert_count": 8}, "expert_count is 8, and Pelton implements only 0"),
        ({"tensor_data_layout": "other"}, "tensor_data_layout is 'other'"),
        ({"attention__causal": False}, "attention.causal is False"),
        ({"block_count": 2**32 - 1}, "4294967295 layers are announced, and Pelton builds up to 1000"),
        ({"block_count": 0}, "block_count must be an integer of at least 1"),
        ({"block_count": 2.5}, "block_count must be an integer"),
        ({"block_count": True}, "block_count must be a number"),
        ({"block_count": np.array([12], np.int32)}, "block_count must be a number"),
        ({"context_length": 2**31}, "the context length is 2147483648, and Pelton computes positions only up to"),
        ({"context_length": "long"}, "context_length must be a number"),
        ({"attention__head_count_kv": np.array([2] * 11 + [1])}, "head_count_kv differs between layers"),
        ({"attention__head_count_kv": np.array([2, 2])}, "head_count_kv has 2 entries for 12 layers"),
        ({"attention__head_count_kv": np.array([])}, "head_count_kv has 0 entries for 12 layers"),
        ({"attention__head_count_kv": np.array([True] * 12)}, "head_count_kv must be a number"),
        ({"attention__head_count_kv": ["2"] * 12}, "head_count_kv must be a number"),
        ({"attention__head_count_kv": 3}, "num_heads"),
        ({"embedding_length": 33}, "hidden size 33 is not a multiple of 4 attention heads"),
        ({"rope__dimension_count": 4}, "rope.dimension_count is 4, and should be head_size, 8"),
        ({"rope__dimension_count": np.array([8, 8])}, "rope.dimension_count is array"),
        ({"attention__value_length": 16}, "attention.value_length is 16, and should be head_size, 8"),
        ({"attention__key_length": 7}, "head_size must be even"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "rms_epsilon must be positive"),
        ({"rope__freq_base": float("inf")}, "freq_base must be positive"),
        ({"tokenizer__ggml__eos_token_id": 96}, "eos_token_id has 96, which is not below"),
        ({"tokenizer__ggml__eot_token_id": "x"}, "eot_token_id must be an integer, got 'x'"),
        ({"tokenizer__ggml__eom_token_id": True}, "eom_token_id must be an integer, got True"),
        (
            {"tokenizer__ggml__tokens": ["a"], "tokenizer__ggml__token_type": np.array([1, 1])},
            "tokenizer.ggml.tokens and tokenizer.ggml.token_type must be lists of the same length",
        ),
        ({"general__type": "adapter"}, "general.type is 'adapter', and Pelton reads only 'model'"),
        ({"general__quantization_version": 1}, "general.quantization_version is 1, and Pelton reads only 2"),
        ({"general__quantization_version": np.array([2, 2])}, "general.quantization_version"),
        ({"adapter__type": "lora"}, "the key adapter.type, as adapters have, and Pelton reads only whole models"),
        ({"general__architecture": "phi3"}, "'phi3', and Pelton runs llama, qwen2, qwen3, gemma3"),
        ({"general__architecture": ["llama"] * 1000}, r"general.architecture is \['llama', "),
    ],
)
def test_refuses(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        read(metadata_of(**changes))
    assert str(refusal.value).startswith("tiny.gguf: ")
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attention__sliding_window": 0}, "attention.sliding_window must be an integer of at least 1"),
        ({"attention__sliding_window_pattern": 0}, "sliding_window_pattern must be an integer of at least 1"),
        ({"attention__sliding_window_pattern": np.array([True])}, "sliding_window_pattern has 1 entries for 12 layers"),
        ({"attention__sliding_window_pattern": np.array([1.0] * 12)}, "must be an integer or an array of booleans"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping must be positive"),
        ({"rope__freq_base_swa": 0.0}, "rope.freq_base_swa must be positive"),
    ],
)
def test_refuses_gemma(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(metadata_of("gemma3", **{**GEMMA, **changes}))


@pytest.mark.parametrize(
    ("architecture", "key"),
    [
        ("llama", "block_count"),
        ("llama", "vocab_size"),
        ("qwen2", "embedding_length"),
        ("qwen3", "attention.head_count"),
        ("gemma3", "rope.freq_base"),
    ],
)
def test_refuses_a_file_without(architecture: str, key: str) -> None:
    with pytest.raises(ValueError, match=f"{architecture}.* metadata, the key {key} is missing"):
        read(metadata_of(architecture, without=(f".{key}",)))
