"""What a decode step reads and computes, against the weights of models by transformers."""

import pytest

from pelton.bench.model_cost import model_cost
from pelton.ops.packed_linear import packed_bytes
from tests.models.helpers import HEAD_SIZE, gemma3, llama, load
from tests.support.backends import target_of

KV_HEADS, HEADS = 2, 6


def matrices(reference, *, tied):
    """Sizes of all weights that every step reads: not those of an embedding that is not the head too."""
    return {
        name: parameter.numel()
        for name, parameter in reference.named_parameters()
        if parameter.dim() == 2 and (tied or "embed_tokens" not in name)
    }


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_weights(tied):
    reference = llama(tied=tied)
    num_weights = sum(matrices(reference, tied=tied).values())
    cost = model_cost(load(reference), 100)
    assert cost.weight_bytes == {"fp32": 4 * num_weights}
    assert cost.weight_bytes_total == 4 * num_weights
    assert cost.product_flop == {"fp32": 2 * num_weights}


@pytest.mark.parametrize("context", [0, 6, 7, 100])
def test_attention(context):
    """In a layer with a window, the token itself and those before it within the window."""
    reference = gemma3(window=7)
    num_seen = 3 * min(context + 1, 7) + context + 1  # one of four layers sees all
    cost = model_cost(load(reference), context)
    assert cost.kv_cache_dtype == "float32"
    assert cost.kv_bytes == 2 * 4 * KV_HEADS * HEAD_SIZE * num_seen
    assert cost.attention_flop == 2 * 2 * HEADS * HEAD_SIZE * num_seen


@pytest.mark.parametrize("weight_format", ["bf16", "int8", "int4"])
def test_packed_weights(weight_format):
    """As they lie in memory, scales and padding included."""
    reference = llama(tied=True)
    target = target_of("native", weight_format, "bfloat16")
    cost = model_cost(load(reference, target), 10)
    sizes = matrices(reference, tied=True)
    shapes = [tuple(reference.get_parameter(name).shape) for name in sizes]
    least = sum(packed_bytes(shape, weight_format) for shape in shapes)
    assert cost.weight_bytes.keys() == {weight_format}
    assert least <= cost.weight_bytes[weight_format] <= 2 * least
    assert cost.product_flop == {weight_format: 2 * sum(sizes.values())}
    assert cost.kv_cache_dtype == "bfloat16"
    assert cost.kv_bytes == 4 * 2 * 2 * KV_HEADS * HEAD_SIZE * 11


def test_formats_are_told_apart():
    reference = llama(tied=False)
    target = target_of("native", "bf16", "bfloat16")
    target = type(target)(target.backend, "bf16", part_format=lambda name: "int8" if name == "lm_head" else "bf16")
    cost = model_cost(load(reference, target), 0)
    sizes = matrices(reference, tied=False)
    head = sizes["lm_head.weight"]
    assert cost.product_flop == {"int8": 2 * head, "bf16": 2 * (sum(sizes.values()) - head)}
    assert cost.weight_bytes["int8"] >= head
