"""Weights of linear layers and embeddings, from named parts to what the operators read."""

from dataclasses import replace

import numpy as np
import pytest

from pelton.layers import Embedding, GatedMLP, Head, LinearWeight, RMSNorm
from pelton.models import create_model
from pelton.ops import L, Recorder, T, pack_rows
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


def test_rows_come_in_pieces() -> None:
    weight = LinearWeight([("gate", 4), ("up", 4)], 3, numpy_target("int8"), gated=True)
    gate, up = weight.parameters()
    up.load(ROWS[:1])
    gate.load(ROWS[:3])
    gate.load(ROWS[3:])
    with pytest.raises(ValueError, match="gate is loaded twice"):
        gate.load(ROWS[3:])
    with pytest.raises(ValueError, match=r"up must have shape \[4, 3\], got \[4, 3\] for its last 3 rows"):
        up.load(ROWS)
    up.load(ROWS[1:])
    expected = pack_rows([ROWS, ROWS], weight_format="int8", gated=True)
    np.testing.assert_array_equal(weight.packed.array, expected.array)
    np.testing.assert_array_equal(weight.packed.scales, expected.scales)


def test_parts_of_one_weight_share_the_widest_format() -> None:
    formats = {"q": "int4", "k": "int8", "v": "int4", "o": "int4"}
    target = replace(numpy_target("bf16"), part_format=formats.__getitem__)
    assert LinearWeight([("q", 2), ("k", 1), ("v", 1)], 3, target).format == "int8"
    assert LinearWeight([("o", 2)], 3, target).format == "int4"
    formats["v"] = "bf16"
    parts = LinearWeight([("q", 2), ("k", 1), ("v", 1)], 3, target).parameters()
    assert [part.format for part in parts] == ["bf16"] * 3


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


@pytest.mark.parametrize("weight_format", ["fp32", "bf16", "int8", "int4"])
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
