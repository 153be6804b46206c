import logging
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from pelton.config import DecoderConfig, RopeConfig, TensorScaling
from pelton.loader import Checkpoint, load_weights, open_checkpoint
from pelton.loader.weights import WeightNames, deinterleave
from pelton.models import create_model

MakeGGUF = Callable[..., Path]
Parameters = Callable[[Checkpoint], dict[str, Any]]


def test_both_formats_give_the_same_weights(
    tiny_model: LlamaForCausalLM,
    tiny_folder: Path,
    make_gguf: MakeGGUF,
    parameters: Parameters,
    hf_name: Callable[[Checkpoint, str], str],
) -> None:
    state = tiny_model.state_dict()
    for path in (tiny_folder, make_gguf()):
        checkpoint = open_checkpoint(str(path))
        loaded = parameters(checkpoint)
        load_weights(loaded, checkpoint)
        assert len(loaded) == len(state)
        for name, parameter in loaded.items():
            expected = state[hf_name(checkpoint, name)].numpy()
            np.testing.assert_array_equal(parameter.array, expected, err_msg=f"{path} {name}")


def test_a_gguf_file_loads_as_in_transformers(
    tiny_model: LlamaForCausalLM,
    make_gguf: MakeGGUF,
    parameters: Parameters,
    hf_name: Callable[[Checkpoint, str], str],
) -> None:
    path = make_gguf({"tokenizer.ggml.tokens": ["a"] * 96, "tokenizer.ggml.model": "gpt2"})
    checkpoint = open_checkpoint(str(path))
    loaded = parameters(checkpoint)
    load_weights(loaded, checkpoint)
    reference = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=tiny_model)["tensors"]
    for name, parameter in loaded.items():
        np.testing.assert_array_equal(parameter.array, reference[hf_name(checkpoint, name)].numpy(), err_msg=name)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("checkpoint_format", ["hf", "gguf"])
def test_every_parameter_has_a_name_in_both_formats(architecture: str, checkpoint_format: str) -> None:
    rope = RopeConfig(1e4, TensorScaling() if checkpoint_format == "gguf" else None)
    config = DecoderConfig(
        architecture=architecture,
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_size=4,
        rms_norm_eps=1e-5,
        rope=rope,
        sliding_rope=rope,
        max_position_embeddings=8,
        tie_word_embeddings=False,
        eos_token_ids=(),
        layer_windows=(None, 4),
        attention_scale=0.5,
        attention_bias=True,
        attention_output_bias=architecture != "qwen2",
        mlp_bias=architecture != "qwen2",
    )
    names = WeightNames(config, checkpoint_format)
    foreign = [names.foreign(name) for name in create_model(config, block_size=16).parameters()]
    assert len(set(foreign)) == len(foreign) > 20


def test_rows_and_biases_are_brought_into_order() -> None:
    rows = np.arange(16, dtype=np.float32)
    expected = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    np.testing.assert_array_equal(deinterleave(rows, 2), expected)
    weight = np.repeat(rows[:, None], 3, axis=1)
    np.testing.assert_array_equal(deinterleave(weight, 2), weight[expected])


def test_loads_smollm2(smollm2: Checkpoint, parameters: Parameters, caplog: pytest.LogCaptureFixture) -> None:
    loaded = parameters(smollm2)
    with caplog.at_level(logging.INFO, logger="pelton"):
        load_weights(loaded, smollm2)
    assert all(np.isfinite(parameter.array).all() for parameter in loaded.values())
    assert "Loaded smollm2: llama, 134.5 M parameters, 98.36 MB on disk, 538.1 MB as float32, in " in caplog.text
    assert len(caplog.records) == 1


def test_progress_is_shown_on_request(
    tiny_folder: Path, parameters: Parameters, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = open_checkpoint(str(tiny_folder))
    load_weights(parameters(checkpoint), checkpoint)
    assert capsys.readouterr().err == ""
    load_weights(parameters(checkpoint), checkpoint, progress=True)
    assert "Loading weights" in capsys.readouterr().err


def test_one_error_lists_everything_that_does_not_fit(make_gguf: MakeGGUF, parameters: Parameters) -> None:
    path = make_gguf(
        tensors={
            "blk.0.attn_k.weight": None,
            "blk.1.ffn_up.weight": np.zeros((3, 4), np.float32),
            "rope_freqs.weight": np.ones(4, np.float32),
        }
    )
    checkpoint = open_checkpoint(str(path))
    loaded = parameters(checkpoint)
    with pytest.raises(ValueError, match=r"tiny\.gguf does not fit the model") as refusal:
        load_weights(loaded, checkpoint)
    message = str(refusal.value)
    assert "missing tensors: blk.0.attn_k.weight" in message
    assert "no place for: rope_freqs.weight" in message
    assert "wrong shape: blk.1.ffn_up.weight is (3, 4) and should be (64, 32)" in message
    assert all(parameter.array is None for parameter in loaded.values())


def check_refused_before_anything_is_allocated(path: Path) -> None:
    checkpoint = open_checkpoint(str(path))
    tracemalloc.start()
    model = create_model(checkpoint.config, block_size=16)
    with pytest.raises(ValueError, match="does not fit the model; tensors of the wrong shape"):
        load_weights(model.parameters(), checkpoint)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 10**9},
        {"hidden_size": 3_800_000_000},
        {"vocab_size": 10**11, "intermediate_size": 10**11, "max_position_embeddings": 2**24},
        {"num_attention_heads": 2**39, "num_key_value_heads": 2**39},
    ],
)
def test_absurd_sizes_are_refused_before_anything_is_allocated(
    changes: dict[str, Any], edit_config: Callable[[dict[str, Any]], Path]
) -> None:
    check_refused_before_anything_is_allocated(edit_config(changes))


def test_absurd_sizes_of_gguf_files_are_refused_before_anything_is_allocated(make_gguf: MakeGGUF) -> None:
    path = make_gguf({"llama.embedding_length": 3_800_000_000, "llama.rope.dimension_count": None})
    check_refused_before_anything_is_allocated(path)


def test_a_long_list_is_cut(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.layers\.0.* and 13 more$"):
        load_weights({}, open_checkpoint(str(tiny_folder)))


def test_buffers_and_copies_of_the_embedding_are_not_parameters(
    tiny_folder: Path, edit_config: Callable[[dict[str, Any]], Path], parameters: Parameters
) -> None:
    path = tiny_folder / "model.safetensors"
    tensors = load_file(path) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(tensors, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    load_weights(parameters(checkpoint), checkpoint)

    edit_config({"tie_word_embeddings": True})
    checkpoint = open_checkpoint(str(tiny_folder))
    with pytest.raises(ValueError, match=r"says tie_word_embeddings, but lm_head\.weight differs from model\.embed"):
        load_weights(parameters(checkpoint), checkpoint)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    load_weights(parameters(checkpoint), checkpoint)

    del tensors["lm_head.weight"]
    save_file(tensors, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    load_weights(parameters(checkpoint), checkpoint)


def test_an_untied_model_needs_its_head(tiny_folder: Path, parameters: Parameters) -> None:
    path = tiny_folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(tensors, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    with pytest.raises(ValueError, match=r"missing tensors: lm_head\.weight$"):
        load_weights(parameters(checkpoint), checkpoint)
