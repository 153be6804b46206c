import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pelton.config import DecoderConfig, LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from pelton.loader.hf.config import read_hf_config
from tests.support.hf_configs import HF_CONFIGS

LLAMA, QWEN2, QWEN3, GEMMA = "SmolLM2 135M Instruct", "Qwen2.5 0.5B Instruct", "Qwen3 0.6B", "Gemma 3 270M"
MISTRAL = "Mistral 7B v0.1"

Read = Callable[..., DecoderConfig]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read one of `HF_CONFIGS` with changed keys; a key named in `without` is left out."""

    def read_changed(name: str, changes: dict[str, Any] | None = None, without: tuple[str, ...] = ()) -> DecoderConfig:
        config = {key: value for key, value in HF_CONFIGS[name].items() if key not in without} | (changes or {})
        (tmp_path / "config.json").write_text(json.dumps(config))
        return read_hf_config(tmp_path)

    return read_changed


def test_reads_every_field(read: Read) -> None:
    rope = RopeConfig(100000.0)
    assert read(LLAMA) == DecoderConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        rms_norm_eps=1e-5,
        rope=rope,
        sliding_rope=rope,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_ids=(2,),
        layer_windows=(None,) * 30,
        attention_scale=0.125,
    )


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "Llama 3.1 8B Instruct",
            {
                "rope": RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
                "sliding_rope": RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
                "max_position_embeddings": 131072,
                "eos_token_ids": (128001, 128008, 128009),
            },
        ),
        ("Llama 3.2 1B, by unsloth", {"head_size": 64, "num_layers": 16, "tie_word_embeddings": True}),
        ("Llama 1 7B", {"num_kv_heads": 32, "rope": RopeConfig(1e4), "max_position_embeddings": 2048}),
        ("Vicuna 7B v1.5 16k", {"rope": RopeConfig(1e4, LinearScaling(4.0)), "max_position_embeddings": 16384}),
        ("TinyLlama 1.1B Chat", {"num_kv_heads": 4, "rope": RopeConfig(1e4), "mlp_bias": False}),
        ("Granite 3B code", {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}),
        ("Mistral 7B v0.1", {"architecture": "llama", "layer_windows": (4096,) * 32, "head_size": 128}),
        ("Mistral 7B v0.3", {"layer_windows": (None,) * 32, "attention_bias": False, "vocab_size": 32768}),
        ("Mistral Nemo 12B", {"head_size": 128, "hidden_size": 5120, "num_heads": 32}),
        (
            "Qwen2.5 0.5B Instruct",
            {
                "architecture": "qwen2",
                "attention_bias": True,
                "attention_output_bias": False,
                "layer_windows": (None,) * 24,
                "head_size": 64,
                "rope": RopeConfig(1e6),
            },
        ),
        (
            "Qwen2.5 7B Instruct, with YaRN",
            {
                "rope": RopeConfig(1e6, YarnScaling(4.0, 32768, 1.138629436111989)),
                "max_position_embeddings": 131072,
                "layer_windows": (None,) * 28,
            },
        ),
        (
            "Qwen3 0.6B",
            {
                "architecture": "qwen3",
                "head_size": 128,
                "attention_bias": False,
                "attention_scale": 128**-0.5,
                "max_position_embeddings": 40960,
            },
        ),
        ("Qwen3 0.6B, with YaRN", {"max_position_embeddings": 131072}),
        # DeepSeek takes back YaRN's factor on cosine and sine.
        ("DeepSeek R1 0528 Qwen3 8B", {"rope": RopeConfig(1e6, YarnScaling(4.0, 32768, 1.0))}),
        (
            "Gemma 3 270M",
            {
                "architecture": "gemma3",
                "rope": RopeConfig(1e6),
                "sliding_rope": RopeConfig(1e4),
                "layer_windows": ((512,) * 5 + (None,)) * 3,
                "attention_scale": 0.0625,
                "tie_word_embeddings": True,
                "attention_softcap": None,
                "logit_softcap": None,
                "max_position_embeddings": 32768,
            },
        ),
        ("Gemma 3 1B Instruct", {"layer_windows": ((512,) * 5 + (None,)) * 4 + (512,) * 2, "eos_token_ids": (1, 106)}),
        (
            "Gemma 3 4B, its text_config alone",
            {
                "rope": RopeConfig(1e6, LinearScaling(8.0)),
                "sliding_rope": RopeConfig(1e4),
                "max_position_embeddings": 131072,
                "vocab_size": 262208,
                "num_heads": 8,
                "num_kv_heads": 4,
                "head_size": 256,
                "layer_windows": ((1024,) * 5 + (None,)) * 5 + (1024,) * 4,
            },
        ),
    ],
)
def test_reads_what_users_have(name: str, facts: dict[str, Any], read: Read) -> None:
    config = read(name)
    assert {field: getattr(config, field) for field in facts} == facts


def test_both_versions_of_transformers_say_the_same(read: Read) -> None:
    assert read("Qwen2.5 0.5B Instruct, saved by transformers 5") == read("Qwen2.5 0.5B Instruct")


def test_end_of_sequence_tokens_are_those_of_both_files(read: Read, tmp_path: Path) -> None:
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [5, 9], "temperature": 0.6}))
    assert read(LLAMA, {"eos_token_id": [7, 5]}).eos_token_ids == (5, 7, 9)
    generation.unlink()
    assert read(LLAMA, {"eos_token_id": [7, 5]}).eos_token_ids == (5, 7)
    assert read(LLAMA, {"eos_token_id": None}).eos_token_ids == ()
    assert read(LLAMA, without=("eos_token_id",)).eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (None,) * 24),
        ({"use_sliding_window": True}, (None,) * 21 + (32768,) * 3),
        ({"use_sliding_window": True, "max_window_layers": 0}, (32768,) * 24),
        ({"use_sliding_window": True, "max_window_layers": 24}, (None,) * 24),
        ({"use_sliding_window": True, "sliding_window": None}, (None,) * 24),
        (
            {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 12},
            (32768, None) * 12,
        ),
        ({"layer_types": ["full_attention"] * 24}, (None,) * 24),
    ],
)
@pytest.mark.parametrize("name", [QWEN2, QWEN3])
def test_windows_of_qwen(name: str, changes: dict[str, Any], windows: tuple[int | None, ...], read: Read) -> None:
    base = {"num_hidden_layers": 24, "max_window_layers": 21, "sliding_window": 32768}
    assert read(name, base | changes).layer_windows == windows


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, ((512,) * 5 + (None,)) * 3),
        ({"sliding_window_pattern": 3}, ((512,) * 2 + (None,)) * 6),
        ({"_sliding_window_pattern": 2}, (512, None) * 9),
        ({"sliding_window_pattern": 2, "_sliding_window_pattern": 2}, (512, None) * 9),
        ({"sliding_window_pattern": 1}, (None,) * 18),
        ({"layer_types": ["sliding_attention"] * 18, "sliding_window_pattern": 2}, (512,) * 18),
        ({"layer_types": ["full_attention"] * 18, "sliding_window": None}, (None,) * 18),
    ],
)
def test_windows_of_gemma(changes: dict[str, Any], windows: tuple[int | None, ...], read: Read) -> None:
    assert read(GEMMA, changes, without=("layer_types", "_sliding_window_pattern")).layer_windows == windows


def test_harmless_keys_may_be_null(read: Read) -> None:
    nulls = dict.fromkeys(
        ("quantization_config", "auto_map", "pretraining_tp", "max_sequence_length", "sliding_window")
    )
    assert read(LLAMA, nulls) == read(LLAMA)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        (LLAMA, {"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map asks to run code"),
        (LLAMA, {"architectures": ["PhiForCausalLM"]}, r"'PhiForCausalLM'\], and Pelton runs LlamaForCausalLM, Mis"),
        (LLAMA, {"architectures": None}, "architectures is None"),
        (LLAMA, {"architectures": ["LlamaForCausalLM", "X"]}, "architectures is"),
        (LLAMA, {"architectures": ["LlamaModel"]}, "architectures is"),
        (GEMMA, {"architectures": ["Gemma3ForConditionalGeneration"]}, "'Gemma3ForConditionalGeneration'.*text models"),
        (LLAMA, {"text_config": {}}, "reads only checkpoints of text models yet"),
        (LLAMA, {"model_type": "mistral"}, "model_type is 'mistral', and LlamaForCausalLM has 'llama'"),
        (GEMMA, {"model_type": "gemma3"}, "model_type is 'gemma3', and Gemma3ForCausalLM has 'gemma3_text'"),
        (LLAMA, {"dual_chunk_attention_config": {}}, "does not know the key dual_chunk_attention_config"),
        (LLAMA, {"rope_local_base_freq": 1e4}, "does not know the key rope_local_base_freq"),
        (LLAMA, {"b": 1, "a": 1}, "does not know the key a, b, so it cannot honour it"),
        (LLAMA, {"pretraining_tp": 2}, "pretraining_tp is 2, and Pelton implements only 1"),
        (LLAMA, {"pretraining_tp": True}, "pretraining_tp"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act is 'gelu', and Pelton implements only 'silu'"),
        (LLAMA, {"rope_interleaved": True}, "rope_interleaved is True"),
        (LLAMA, {"sliding_window": 4096}, "sliding_window is 4096, and Pelton implements only None"),
        (LLAMA, {"max_sequence_length": 4096}, "should be max_position_embeddings, 8192"),
        (LLAMA, {"is_encoder_decoder": True}, "is_encoder_decoder is True"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, and Pelton implements only 1.0"),
        (MISTRAL, {"attention_bias": True}, "attention_bias is True"),
        (QWEN2, {"attention_bias": False}, "attention_bias is False, and Pelton implements only True"),
        (QWEN2, {"use_mrope": True}, "use_mrope is True"),
        (QWEN2, {"max_window_layers": -1}, "max_window_layers must be an integer of at least 0"),
        (QWEN2, {"layer_types": ["full_attention"] * 23}, "layer_types has 23 entries for 24 layers"),
        (QWEN2, {"layer_types": ["sliding_attention"] * 24}, "layer_types has sliding_attention, but there is no"),
        (
            QWEN3,
            {"layer_types": ["linear_attention"]},
            "layer_types has 'linear_attention', and Pelton implements full",
        ),
        (QWEN3, {"layer_types": "full_attention"}, "layer_types must be a list"),
        (GEMMA, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (GEMMA, {"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        (GEMMA, {"sliding_window": None}, "layer_types has sliding_attention, but there is no sliding_window"),
        (GEMMA, {"layer_types": None, "sliding_window_pattern": 3}, "_sliding_window_pattern are both there, and diff"),
        (GEMMA, {"query_pre_attn_scalar": None}, "query_pre_attn_scalar must be a number"),
        (GEMMA, {"final_logit_softcapping": 0.0}, "final_logit_softcapping must be positive"),
        (LLAMA, {"vocab_size": "96"}, "vocab_size must be a number"),
        (LLAMA, {"vocab_size": None}, "vocab_size must be a number, got None"),
        (LLAMA, {"vocab_size": 96.0}, "vocab_size must be an integer"),
        (LLAMA, {"rms_norm_eps": -1.0}, "rms_norm_eps must be positive"),
        (LLAMA, {"rms_norm_eps": float("nan")}, "rms_norm_eps must be positive"),
        (LLAMA, {"rms_norm_eps": 10**400}, "rms_norm_eps must be positive"),
        (LLAMA, {"rms_norm_eps": 1e-300}, "rms_norm_eps must be positive, from 1e-30 to 1e\\+30, got 1e-300"),
        (GEMMA, {"final_logit_softcapping": 1e-50}, "final_logit_softcapping must be positive, from 1e-30"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 1e-46}}, "factor must be positive, from 1e-30"),
        (LLAMA, {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        (LLAMA, {"eos_token_id": "2"}, "eos_token_id must be an integer or a list of integers"),
        (LLAMA, {"eos_token_id": [2, 49152]}, "eos_token_id has 49152, which is not below"),
        (LLAMA, {"eos_token_id": -1}, "eos_token_id has -1, which is not below"),
        (LLAMA, {"num_hidden_layers": 10**9}, "1000000000 layers are announced, and Pelton builds up to 1000"),
        (LLAMA, {"num_hidden_layers": 1001}, "1001 layers are announced"),
        (LLAMA, {"num_key_value_heads": 4}, "must be a multiple of num_kv_heads"),
        (LLAMA, {"hidden_size": 577}, "hidden size 577 is not a multiple of 9 attention heads"),
        (LLAMA, {"head_dim": 10**400}, r"head_dim must be an integer of at least 1 and below 2\*\*40"),
        (LLAMA, {"max_position_embeddings": 2**31}, "the context length is 2147483648, and Pelton computes positions"),
        (LLAMA, {"max_position_embeddings": 10**12}, "the context length is 1000000000000"),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 1e9}}, "the context length is 8192000000000"),
    ],
)
def test_refuses(name: str, changes: dict[str, Any], problem: str, read: Read) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        read(name, changes)
    assert "config.json" in str(refusal.value)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"])
def test_refuses_a_file_without(key: str, read: Read) -> None:
    with pytest.raises(ValueError, match=f"the key {key} is missing"):
        read(LLAMA, without=(key,))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config: 'awq'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: 'gptq'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config: 'fp8'"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: {'bits': 4}"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compression_config: 'compressed-tensors'"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantization: {"),
    ],
)
def test_refuses_quantized_weights(changes: dict[str, Any], kind: str, read: Read) -> None:
    with pytest.raises(ValueError, match=f"the weights are quantized .*{kind}.*safetensors of 16 or 32 bits, or GGUF"):
        read(QWEN2, changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": [["x" * 1000] * 100] * 100},
        {"x" * 200 + str(i): i for i in range(100)},
        {"rope_scaling": {"x\n" * 1000: 1}},
        {"quantization_config": {"quant_method": "x\n" * 1000}},
        {"architectures": ["x\n" * 1000]},
        {"layer_types": ["x\n" * 1000]},
    ],
)
def test_messages_stay_short(changes: dict[str, Any], read: Read) -> None:
    with pytest.raises(ValueError, match=r"config\.json") as refusal:
        read(QWEN2, changes)
    assert len(str(refusal.value)) < 600
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ("\xff", r"config\.json is not UTF-8"),
    ],
)
def test_refuses_what_is_not_a_json_object(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=problem):
        read_hf_config(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_reads_only_regular_files(name: str, read: Read, tmp_path: Path) -> None:
    read(LLAMA)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        make()
        with pytest.raises(ValueError, match=rf"{name} cannot be read: it is not a regular file"):
            read_hf_config(tmp_path)
        path.rmdir() if path.is_dir() else path.unlink()


def test_refuses_json_that_is_too_large(read: Read, tmp_path: Path) -> None:
    read(LLAMA)
    os.truncate(tmp_path / "config.json", 64_000_001)
    with pytest.raises(ValueError, match=r"config\.json cannot be read: it is larger than 16 MB"):
        read_hf_config(tmp_path)
