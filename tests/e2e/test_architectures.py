"""Tiny models of every architecture and option, in both formats, against transformers."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as TensorType
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from pelton import LLM, SamplingParams
from tests.support.engines import assert_as_reference, generate
from tests.support.gguf_writer import as_type, random_blocks, write_gguf
from tests.support.tiny_models import (
    VARIANTS,
    VOCAB_SIZE,
    build,
    logprobs_of,
    randomized,
    save_folder,
    tiny_model,
    with_options,
)

PARAMS = SamplingParams(temperature=0, max_tokens=24, logprobs=5, ignore_eos=True)
LENGTHS = (1, 2, 7, 8, 9, 15, 16, 17, 33, 60)
PROMPTS = {
    f"{length} tokens": np.random.default_rng(length).integers(3, VOCAB_SIZE, length).tolist() for length in LENGTHS
}
LONGEST = [*PROMPTS["60 tokens"], *range(3, 27)]
NOTICED = 1e-2
"""A logprob that is off by this much is noticed: ten times what is tolerated."""

in_gguf = [name for name, variant in VARIANTS.items() if variant.in_gguf]


@pytest.fixture(autouse=True)
def free_models() -> None:
    """These models are so small that collecting them would take longer than all the rest."""


def check(path: Path, reference: PreTrainedModel) -> None:
    """Every step is small, so that chunks begin and end inside windows, and mix with decodes."""
    llm = LLM(model=str(path), dtype="float32", kv_cache_memory_bytes=8 << 20, max_num_batched_tokens=16)
    assert_as_reference(generate(llm, PROMPTS, PARAMS), logprobs_of(reference))


@pytest.mark.parametrize("name", VARIANTS)
def test_safetensors(name: str, tmp_path: Path) -> None:
    check(save_folder(tiny_model(name), tmp_path), tiny_model(name))


@pytest.mark.parametrize("name", in_gguf)
def test_gguf(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    check(path, write_gguf(tiny_model(name), path))


@pytest.mark.parametrize("tensor_type", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_tensor_types_of_gguf(tensor_type: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    check(path, write_gguf(tiny_model("llama"), path, as_type(TensorType[tensor_type])))


def test_k_quants_of_gguf(tmp_path: Path) -> None:
    """All five types in one file, by turns. Their blocks are of 256 values."""
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}
    model = randomized(build(LlamaConfig, {**shape, "num_hidden_layers": 3}), seed=3)
    types = [TensorType.Q2_K, TensorType.Q3_K, TensorType.Q4_K, TensorType.Q5_K, TensorType.Q6_K]
    path = tmp_path / "model.gguf"
    check(path, write_gguf(model, path, random_blocks(types, scale=0.1)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_tensor_types_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    """The reference computes in float32 too, with the values that the file holds."""
    model = randomized(build(LlamaConfig, {}), seed=5)
    save_folder(copy.deepcopy(model).to(dtype), tmp_path)
    model.load_state_dict({name: tensor.to(dtype).float() for name, tensor in model.state_dict().items()})
    check(tmp_path, model)


def test_shards(tmp_path: Path) -> None:
    save_folder(tiny_model("qwen3"), tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 5
    check(tmp_path, tiny_model("qwen3"))


def rope_as_before(config: dict[str, Any], type_key: str) -> None:
    """In the words of transformers 4."""
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    config["rope_theta"] = rope.pop("rope_theta")
    rope_type = rope.pop("rope_type")
    config["rope_scaling"] = None if rope_type == "default" else {type_key: rope_type, **rope}


def as_before(config: dict[str, Any]) -> None:
    rope_as_before(config, "rope_type")
    config["torch_dtype"] = config.pop("dtype")


def as_long_before(config: dict[str, Any]) -> None:
    rope_as_before(config, "type")


def with_defaults(config: dict[str, Any]) -> None:
    """Only what no reader can do without."""
    rope_as_before(config, "rope_type")
    defaults = ("attention_bias", "head_dim", "mlp_bias", "num_key_value_heads", "rope_scaling", "rope_theta")
    for key in (*defaults, "hidden_act", "pretraining_tp", "tie_word_embeddings"):
        del config[key]


def with_idle_windows(config: dict[str, Any]) -> None:
    """As Qwen2.5 has it: a window that is not used."""
    as_before(config)
    del config["layer_types"]
    config |= {"sliding_window": 8, "max_window_layers": 2, "use_sliding_window": False}


def with_a_pattern(config: dict[str, Any]) -> None:
    """As the first Gemma 3 checkpoints have it."""
    as_before(config)
    del config["layer_types"]
    config.pop("_sliding_window_pattern", None)
    config["sliding_window_pattern"] = 6


@pytest.mark.parametrize(
    ("name", "rewrite"),
    [
        ("llama mha", with_defaults),
        ("llama linear", as_before),
        ("llama linear", as_long_before),
        ("llama llama3", as_before),
        ("llama yarn betas", as_before),
        ("mistral window", as_before),
        ("qwen2", with_idle_windows),
        ("qwen2 yarn", as_long_before),
        ("qwen3", as_before),
        ("gemma3", as_before),
        ("gemma3 linear", with_a_pattern),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_configurations_of_earlier_versions(
    name: str, rewrite: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    save_folder(tiny_model(name), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    rewrite(config)
    path.write_text(json.dumps(config))
    check(tmp_path, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager"))


def test_text_is_the_same_in_both_formats(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(tiny_model("qwen2"), path)
    texts = ["The mill of 1984 stood.", "  ¿Por qué?\n\n", "<|end|>wheel"]
    outputs = [
        LLM(model=str(model), dtype="float32", kv_cache_memory_bytes=8 << 20).generate(texts, PARAMS, use_tqdm=False)
        for model in (path, save_folder(tiny_model("qwen2"), tmp_path))
    ]
    for in_file, in_folder in zip(*outputs, strict=True):
        assert in_file.prompt_token_ids == in_folder.prompt_token_ids
        assert in_file.outputs[0].text == in_folder.outputs[0].text


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_of_these_models_may_be_ignored(name: str) -> None:
    """The references themselves: every parameter and every option has an effect, far from near ties."""
    variant, model = VARIANTS[name], tiny_model(name)
    logprobs = logprobs_of(model)(LONGEST, len(LONGEST))
    best = np.sort(logprobs, axis=1)[:, -2:]
    assert np.median(best[:, 1] - best[:, 0]) > 0.1
    for changes in variant.changes:
        changed = logprobs_of(with_options(model, variant, changes))(LONGEST, len(LONGEST))
        assert np.abs(changed - logprobs).max() > NOTICED, f"{changes} makes no difference"
    effects = torch.log_softmax(model(torch.tensor([LONGEST])).logits[0], dim=-1)
    effects.mul(torch.randn(effects.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert (parameter.grad * parameter).norm() > 1.0, f"{parameter_name} hardly matters"
        parameter.grad = None
