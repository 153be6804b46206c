"""Weights of linear layers and embeddings, from named parts to what the operators read."""

import numpy as np
import pytest

from pelton.layers import Embedding, GatedMLP, Head, LinearWeight, RMSNorm
from pelton.models import create_model
from pelton.ops import L, Recorder, T
from tests.support.backends import numpy_target
from tests.support.tiny_models import VARIANTS, build, decoder_config

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_weight_is_packed_once_all_parts_are_loaded() -> None:
    weight = LinearWeight([("q", 2), ("k", 1), ("v", 1)], 3, numpy_target())
    q, k, v = weight.parameters()
    v.load(ROWS[3:])
    q.load(ROWS[:2])
    with pytest.raises(AssertionError, match=r"not loaded: \['k'\]"):
        _ = weight.packed
    k.load(ROWS[2:3])
    assert np.array_equal(weight.packed.array, ROWS)
    assert (weight.packed.format, weight.packed.bias) == ("fp32", None)
    with pytest.raises(AssertionError, match="q is packed"):
        _ = q.array


def test_a_single_part_is_not_copied() -> None:
    weight = LinearWeight([("o", 2)], 3, numpy_target())
    array = np.zeros((2, 3), np.float32)
    next(weight.parameters()).load(array)
    assert weight.packed.array is array


def test_biases_are_stacked_and_stay_float32() -> None:
    weight = LinearWeight([("q", 1), ("k", 2)], 3, numpy_target("bf16"), bias=True)
    parameters = {parameter.name: parameter for parameter in weight.parameters()}
    assert {name: parameter.format for name, parameter in parameters.items()} == {
        "q": "bf16",
        "k": "bf16",
        "q.bias": "fp32",
        "k.bias": "fp32",
    }
    parameters["k.bias"].load(np.array([1.001, 2.0], np.float32))
    parameters["q"].load(ROWS[:1])
    parameters["k"].load(ROWS[1:3])
    parameters["q.bias"].load(np.array([0.5], np.float32))
    packed = weight.packed
    assert packed.array.dtype == "bfloat16"
    assert packed.bias is not None
    np.testing.assert_array_equal(packed.bias, np.array([0.5, 1.001, 2.0], np.float32))


def test_a_tied_head_stores_nothing() -> None:
    embedding = Embedding("embed_tokens", 10, 4, numpy_target())
    head = Head(embedding.table)
    (parameter,) = embedding.parameters()
    assert list(head.parameters()) == [parameter]
    parameter.load(np.zeros((10, 4), np.float32))
    op = Recorder("head")
    logits, best_ids = head(op, op.input("rows", (L, 4)), op.input("is_wanted", (L,), "int32"))
    assert (logits.shape, best_ids.shape) == ((L, 10), (L,))
    assert embedding(op, op.input("token_ids", (T,), "int32")).shape == (T, 4)
    on_logits, on_embed = op.finish({"logits": logits}).launches
    assert on_logits.arguments[1] is on_embed.arguments[1] is embedding.table.packed


@pytest.mark.parametrize("weight_format", ["fp32", "bf16"])
def test_what_goes_into_a_linear_layer_has_its_format(weight_format: str) -> None:
    target = numpy_target(weight_format)
    config = decoder_config(build(VARIANTS["llama"].config, VARIANTS["llama"].options))
    mlp = GatedMLP("mlp", config, target)
    norm = RMSNorm("norm", config.hidden_size, 1e-5, target.activation_dtype)
    for parameter in (*mlp.parameters(), *norm.parameters()):
        parameter.load(np.ones(parameter.shape, np.float32))
    op = Recorder("mlp")
    x = op.input("x", (T, config.hidden_size))
    output = mlp(op, norm(op, x), residual=x)
    dtypes = [str(launch.outputs[0].dtype) for launch in op.finish({"output": output}).launches]
    assert dtypes == [target.activation_dtype, target.activation_dtype, "float32"]


def test_an_untied_model_has_two_tables() -> None:
    config = decoder_config(
        build(VARIANTS["llama"].config, {**VARIANTS["llama"].options, "tie_word_embeddings": False})
    )
    parameters = create_model(config, numpy_target()).parameters()
    assert parameters["lm_head"].shape == parameters["embed_tokens"].shape == (config.vocab_size, config.hidden_size)
