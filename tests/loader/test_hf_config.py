import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pelton.loader import open_checkpoint

EditConfig = Callable[[dict[str, Any]], Path]


def test_reads_what_transformers_writes(tiny_folder: Path) -> None:
    config = open_checkpoint(str(tiny_folder)).config
    assert (config.architecture, config.vocab_size, config.hidden_size) == ("llama", 96, 32)
    assert (config.intermediate_size, config.num_layers, config.max_position_embeddings) == (64, 2, 128)
    assert (config.num_heads, config.num_kv_heads, config.head_size) == (4, 2, 8)
    assert (config.rms_norm_eps, config.rope_theta) == (1e-5, 10000.0)
    assert config.eos_token_ids == (2,)
    assert config.layer_windows == (None, None)
    assert not config.tie_word_embeddings


def test_reads_the_older_spelling(edit_config: EditConfig) -> None:
    changes = {
        "rope_parameters": None,
        "rope_theta": 100000,
        "rope_scaling": "null",
        "torch_dtype": "bfloat16",
        "is_llama_config": True,
        "rope_interleaved": False,
        "head_dim": None,
        "num_key_value_heads": "null",
        "tie_word_embeddings": True,
    }
    config = open_checkpoint(str(edit_config(changes))).config
    assert config.rope_theta == 100000.0
    assert (config.head_size, config.num_kv_heads) == (8, 4)
    assert config.tie_word_embeddings


def test_end_of_sequence_tokens_are_those_of_both_files(edit_config: EditConfig) -> None:
    folder = edit_config({"eos_token_id": [7, 5]})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 9], "temperature": 0.6}))
    assert open_checkpoint(str(folder)).config.eos_token_ids == (5, 7, 9)
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(str(folder)).config.eos_token_ids == (5, 7)
    edit_config({"eos_token_id": "null"})
    assert open_checkpoint(str(folder)).config.eos_token_ids == ()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"auto_map": {"AutoModel": "modeling.Model"}}, "auto_map"),
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"architectures": None}, "architectures is None"),
        ({"architectures": ["LlamaForCausalLM", "X"]}, "architectures"),
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"attention_bias": True}, "attention_bias is True, and Pelton implements only False"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"pretraining_tp": True}, "pretraining_tp"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}},
            "rope_type of rope_parameters is",
        ),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 2.0}}, "factor of rope_parameters"),
        ({"rope_parameters": 5}, "rope_parameters must be an object"),
        ({"rope_theta": 5e5}, "rope_theta is 500000.0, but 10000.0 in rope_parameters"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": "96"}, "vocab_size must be a number"),
        ({"vocab_size": 96.0}, "vocab_size must be an integer"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be positive"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be positive"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "2"}, "eos_token_id"),
        ({"eos_token_id": [2, 96]}, "token 96"),
        ({"num_hidden_layers": 10**9}, "1000000000 layers"),
        ({"head_dim": 10**400}, r"head_dim must be an integer of at least 1 and below 2\*\*40"),
        ({"max_position_embeddings": 2**31}, "the context length is 2147483648, and Pelton computes positions only"),
        ({"max_position_embeddings": 10**12}, "the context length is 1000000000000"),
    ],
)
def test_refuses(changes: dict[str, Any], problem: str, edit_config: EditConfig) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        open_checkpoint(str(edit_config(changes)))
    assert "config.json" in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ("[" * 100_000, "not valid JSON"),
        ("\xff", r"config\.json is not UTF-8"),
    ],
)
def test_refuses_what_is_not_a_json_object(content: str, problem: str, tiny_folder: Path) -> None:
    (tiny_folder / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=problem):
        open_checkpoint(str(tiny_folder))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_reads_only_regular_files(name: str, tiny_folder: Path) -> None:
    path = tiny_folder / name
    path.unlink()
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        make()
        with pytest.raises(ValueError, match=rf"{name} cannot be read: it is not a regular file"):
            open_checkpoint(str(tiny_folder))
        path.rmdir() if path.is_dir() else path.unlink()


def test_refuses_json_that_is_too_large(tiny_folder: Path) -> None:
    os.truncate(tiny_folder / "config.json", 64_000_001)
    with pytest.raises(ValueError, match=r"config\.json cannot be read: it is larger than 64 MB"):
        open_checkpoint(str(tiny_folder))
