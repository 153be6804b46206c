import logging
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from pelton.config import RopeConfig, TensorScaling
from pelton.layers import Parameter
from pelton.loader import Checkpoint, load_weights, open_checkpoint
from pelton.loader.name_maps import WeightNames
from pelton.loader.parameter_tensor import deinterleaved
from pelton.loader.stored_tensor import StoredTensor
from pelton.models import create_model, record_backbone
from pelton.ops import PackedLinear
from tests.support.backends import numpy_target
from tests.support.tiny_models import VARIANTS, Variant, build, decoder_config

MakeGGUF = Callable[..., Path]

HF_NAMES = {
    "embed_tokens": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "lm_head": "lm_head.weight",
}
HF_NAMES_OF_LAYERS = {
    "attention_norm": "input_layernorm.weight",
    "attention.q": "self_attn.q_proj.weight",
    "attention.k": "self_attn.k_proj.weight",
    "attention.v": "self_attn.v_proj.weight",
    "attention.o": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}


def hf_names(num_layers: int) -> dict[str, str]:
    """Every parameter of a llama -> its tensor's name in transformers."""
    return HF_NAMES | {
        f"layers.{i}.{name}": f"model.layers.{i}.{hf_name}"
        for i in range(num_layers)
        for name, hf_name in HF_NAMES_OF_LAYERS.items()
    }


class Collected(Parameter):
    """Keeps all rows that it is given."""

    def __init__(self, name: str, shape: tuple[int, ...], weight_format: str = "fp32") -> None:
        super().__init__(name, shape)
        self.format = weight_format
        self.pieces: list[Any] = []

    def load(self, rows: Any) -> None:
        self.pieces.append(rows)

    @property
    def array(self) -> np.ndarray:
        return np.concatenate(self.pieces)


def parameters(checkpoint: Checkpoint, weight_format: str = "fp32") -> dict[str, Collected]:
    """Those of the model, without the layers that would pack them."""
    model = create_model(checkpoint.config, numpy_target())
    return {name: Collected(name, parameter.shape, weight_format) for name, parameter in model.parameters().items()}


def test_both_formats_give_the_same_weights(
    tiny_model: LlamaForCausalLM,
    tiny_folder: Path,
    make_gguf: MakeGGUF,
) -> None:
    state = tiny_model.state_dict()
    for path in (tiny_folder, make_gguf()):
        checkpoint = open_checkpoint(str(path))
        loaded = parameters(checkpoint)
        load_weights(loaded, checkpoint)
        expected = {name: state[hf_name].numpy() for name, hf_name in hf_names(2).items()}
        assert loaded.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(loaded[name].array, array, err_msg=f"{path} {name}")


def test_a_gguf_file_loads_as_in_transformers(
    tiny_model: LlamaForCausalLM,
    make_gguf: MakeGGUF,
) -> None:
    path = make_gguf({"tokenizer.ggml.tokens": ["a"] * 96, "tokenizer.ggml.model": "gpt2"})
    checkpoint = open_checkpoint(str(path))
    loaded = parameters(checkpoint)
    load_weights(loaded, checkpoint)
    reference = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=tiny_model)["tensors"]
    for name, hf_name in hf_names(2).items():
        np.testing.assert_array_equal(loaded[name].array, reference[hf_name].numpy(), err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("checkpoint_format", ["hf", "gguf"])
def test_every_parameter_has_a_name_in_both_formats(variant: Variant, checkpoint_format: str) -> None:
    config = decoder_config(build(variant.config, variant.options))
    if checkpoint_format == "gguf":
        config = replace(config, rope=RopeConfig(1e4, TensorScaling()))
    names = WeightNames(config, checkpoint_format)
    foreign = [names.foreign(name) for name in create_model(config, numpy_target()).parameters()]
    assert len(set(foreign)) == len(foreign) > 20


def test_rows_and_biases_are_brought_into_order() -> None:
    expected = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    np.testing.assert_array_equal(deinterleaved(np.arange(16), 8), expected)
    np.testing.assert_array_equal(deinterleaved(np.arange(3, 11), 8), expected[3:11])


def test_loads_smollm2(smollm2: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    loaded = parameters(smollm2)
    with caplog.at_level(logging.INFO, logger="pelton"):
        load_weights(loaded, smollm2)
    assert all(np.isfinite(parameter.array).all() for parameter in loaded.values())
    assert "Loaded smollm2: llama, 134.5 M parameters, 98.36 MB on disk, 538.1 MB as fp32, in " in caplog.text
    assert len(caplog.records) == 1


def test_progress_is_shown_where_loading_takes_a_while(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(str(tiny_folder))
    load_weights(parameters(checkpoint), checkpoint, progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("pelton.loader.weights._BAR_DELAY", 0.0)
    load_weights(parameters(checkpoint), checkpoint)
    assert capsys.readouterr().err == ""
    load_weights(parameters(checkpoint), checkpoint, progress=True)
    assert "Loading weights" in capsys.readouterr().err


def test_one_error_lists_everything_that_does_not_fit(make_gguf: MakeGGUF) -> None:
    path = make_gguf(
        tensors={
            "blk.0.attn_k.weight": None,
            "blk.1.ffn_up.weight": np.zeros((3, 4), np.float32),
            "blk.0.attn_sinks.weight": np.ones(4, np.float32),
        }
    )
    checkpoint = open_checkpoint(str(path))
    loaded = parameters(checkpoint)
    with pytest.raises(ValueError, match=r"tiny\.gguf does not fit the model") as refusal:
        load_weights(loaded, checkpoint)
    message = str(refusal.value)
    assert "missing tensors: blk.0.attn_k.weight" in message
    assert "no place for: blk.0.attn_sinks.weight" in message
    assert "wrong shape: blk.1.ffn_up.weight is (3, 4) and should be (64, 32)" in message
    assert not any(parameter.pieces for parameter in loaded.values())


def check_refused_before_anything_is_allocated(path: Path) -> None:
    checkpoint = open_checkpoint(str(path))
    tracemalloc.start()
    model = create_model(checkpoint.config, numpy_target())
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
    tiny_folder: Path, edit_config: Callable[[dict[str, Any]], Path]
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


def test_an_untied_model_needs_its_head(tiny_folder: Path) -> None:
    path = tiny_folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(tensors, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    with pytest.raises(ValueError, match=r"missing tensors: lm_head\.weight$"):
        load_weights(parameters(checkpoint), checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.self_attn.q_proj.weight"])
def test_elements_that_are_not_finite_are_refused(value: float, name: str, tiny_folder: Path) -> None:
    path = tiny_folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name].view(-1)[3] = value
    save_file(tensors, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    model = create_model(checkpoint.config, numpy_target())
    with pytest.raises(ValueError, match=f"model: tensor '{name}' is not usable: it has an element that is not finite"):
        load_weights(model.parameters(), checkpoint)


def test_large_elements_are_no_mistake(tiny_folder: Path) -> None:
    path = tiny_folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][:] = 3e38  # whose sum is not finite
    save_file(tensors, path)
    checkpoint = open_checkpoint(str(tiny_folder))
    load_weights(create_model(checkpoint.config, numpy_target()).parameters(), checkpoint)


def test_only_a_few_pieces_are_read_ahead(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.loader.weights._PIECE_ELEMENTS", 60 * 32)
    checkpoint = open_checkpoint(str(tiny_folder))
    expected = parameters(checkpoint)
    load_weights(expected, checkpoint)
    loaded = {name: Noted(name, parameter.shape) for name, parameter in expected.items()}
    events: list[tuple[str, str]] = []
    read = StoredTensor.read

    def noted(self: StoredTensor, *rows: int) -> np.ndarray:
        events.append(("read", self.name))
        return read(self, *rows)

    monkeypatch.setattr(StoredTensor, "read", noted)
    for parameter in loaded.values():
        parameter.events = events
    load_weights(loaded, checkpoint)
    loads = [name for kind, name in events if kind == "load"]
    assert list(dict.fromkeys(loads)) == list(loaded), "in the model's order"
    assert loads.count("embed_tokens") == 2, "96 rows, 48 at a time"
    ahead = np.cumsum([{"read": 1, "load": -1}[kind] for kind, _ in events])
    assert 1 < ahead.max() <= 4
    assert ahead[-1] == 0
    for name, parameter in loaded.items():
        np.testing.assert_array_equal(parameter.array, expected[name].array, err_msg=name)


class Noted(Collected):
    """Tells when it is given rows."""

    events: list[tuple[str, str]]

    def load(self, rows: Any) -> None:
        self.events.append(("load", self.name))
        super().load(rows)


def test_the_first_error_in_order_ends_the_loading(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(str(tiny_folder))
    loaded = parameters(checkpoint)
    later = threading.Event()
    num_threads = threading.active_count()

    def fail(self: StoredTensor, *rows: int) -> np.ndarray:
        if self.name == "model.embed_tokens.weight":
            assert later.wait(10)
        else:
            later.set()
        raise ValueError(f"{self.name} is damaged")

    monkeypatch.setattr(StoredTensor, "read", fail)
    with pytest.raises(ValueError, match=r"^model\.embed_tokens\.weight is damaged$"):
        load_weights(loaded, checkpoint)
    assert not any(parameter.pieces for parameter in loaded.values())
    assert threading.active_count() == num_threads


def test_an_interrupt_leaves_no_thread_behind(tiny_folder: Path) -> None:
    checkpoint = open_checkpoint(str(tiny_folder))
    loaded = parameters(checkpoint)
    num_threads = threading.active_count()

    def interrupt(array: np.ndarray) -> None:
        raise KeyboardInterrupt

    list(loaded.values())[3].load = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        load_weights(loaded, checkpoint)
    assert threading.active_count() == num_threads


@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "int8", "int4"])
def test_what_is_said_of_the_size_is_what_it_takes(
    weight_format: str, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = open_checkpoint(str(tiny_folder))
    model = create_model(checkpoint.config, numpy_target(weight_format))
    with caplog.at_level(logging.INFO, logger="pelton"):
        load_weights(model.parameters(), checkpoint)
    program = record_backbone(model, [0] * checkpoint.config.num_layers, 4)
    sizes: dict[int, int] = {}
    for argument in (argument for launch in program.launches for argument in launch.arguments):
        if isinstance(argument, PackedLinear):
            # Over numpy, each number of four bits has a byte of its own.
            size = argument.array.nbytes // (2 if weight_format == "int4" else 1)
            others = [array.nbytes for array in (argument.scales, argument.minimums) if array is not None]
            sizes[id(argument)] = size + sum(others)
        elif isinstance(argument, np.ndarray) and len(argument) == checkpoint.config.hidden_size:
            sizes[id(argument)] = argument.nbytes
    num_bytes = sum(parameter.num_bytes for parameter in model.parameters().values())
    lm_head = model.parameters()["lm_head"].num_bytes
    assert sum(sizes.values()) == num_bytes - lm_head
    formats = "fp32" if weight_format == "fp32" else f"{weight_format} and fp32"
    assert f"{num_bytes / 1e6:.4g} MB as {formats}, in " in caplog.text
