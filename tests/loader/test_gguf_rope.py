from typing import Any

import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pelton.config import LinearScaling, RopeConfig, TensorScaling, YarnScaling
from pelton.loader.gguf.rope import read_rope

FIELDS = {"rope_theta": 1e4, "max_position_embeddings": 4096}
YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 1024}


def scaling_of(keys: dict[str, Any], *tensors: str) -> Any:
    fields = read_rope(keys, FIELDS, tensors)
    assert fields["rope"] is fields["sliding_rope"]
    assert fields["rope"].theta == 1e4
    return fields["rope"].scaling


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"type": "none"}, None),
        ({"type": "none", "factor": 0.0, "attn_factor": 1.0, "finetuned": False}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        ({"factor": 4.0}, LinearScaling(4.0)),
        ({"type": "linear", "factor": 4.0, "original_context_length": 1024, "finetuned": True}, LinearScaling(4.0)),
    ],
)
def test_kinds(keys: dict[str, Any], expected: object) -> None:
    assert scaling_of(keys) == expected


@pytest.mark.parametrize("factor", [0.5, 4.0, 40.0])
def test_yarn_as_transformers_computes_it(factor: float) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": 1024}
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(rope_parameters=rope), "cpu")
    keys = YARN | {"factor": factor}
    assert scaling_of(keys) == YarnScaling(factor, 1024, attention_factor)
    assert scaling_of(keys | {"attn_factor": 0.5}) == YarnScaling(factor, 1024, attention_factor / 2)


def test_options_of_yarn() -> None:
    attention_factor = scaling_of(YARN).attention_factor
    options = {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "yarn_ext_factor": 1.0, "yarn_attn_factor": 1.0}
    scaling = scaling_of(YARN | options | {"yarn_log_multiplier": 0.0, "finetuned": True})
    assert scaling == YarnScaling(4.0, 1024, attention_factor, beta_fast=16.0, beta_slow=2.0)
    assert scaling_of({"type": "yarn", "factor": 4.0}) == YarnScaling(4.0, 4096, attention_factor)


def test_a_tensor_scales() -> None:
    assert scaling_of({}, "rope_freqs.weight") == TensorScaling()
    assert scaling_of({"type": "none"}, "rope_freqs.weight") == TensorScaling()


def test_layers_with_windows_are_not_scaled() -> None:
    ropes = read_rope({"type": "linear", "factor": 8.0}, FIELDS | {"sliding_rope_theta": 2e4}, ())
    assert ropes == {"rope": RopeConfig(1e4, LinearScaling(8.0)), "sliding_rope": RopeConfig(2e4)}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"type": "longrope"}, "rope.scaling.type is 'longrope', and Pelton supports none, linear, yarn"),
        ({"type": 1}, "rope.scaling.type is 1"),
        (
            {"type": "none", "factor": 4.0},
            "with rope.scaling.type none, .* factor is 4.0, and Pelton implements only",
        ),
        ({"attn_factor": 1.2}, "attn_factor is 1.2"),
        ({"type": "linear"}, "with rope.scaling.type linear, in rope.scaling.*, the key factor is missing"),
        ({"type": "linear", "factor": 0.0}, "factor must be positive"),
        ({"type": "linear", "factor": 4.0, "attn_factor": 1.2}, "attn_factor is 1.2, and Pelton implements only 1.0"),
        ({"type": "linear", "factor": 4.0, "yarn_beta_fast": 32.0}, "does not know the key yarn_beta_fast"),
        (YARN | {"yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5"),
        (YARN | {"yarn_attn_factor": 0.5}, "yarn_attn_factor is 0.5"),
        (YARN | {"yarn_log_multiplier": 0.1}, "yarn_log_multiplier is 0.1"),
        (YARN | {"alpha": 1.0}, "does not know the key alpha"),
        (YARN | {"original_context_length": 0}, "original_context_length must be an integer of at least 1"),
        (YARN | {"yarn_beta_slow": 64.0}, r"beta_fast \(32.0\) must be above beta_slow \(64.0\)"),
    ],
)
def test_refuses(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        scaling_of(keys)


def test_refuses_two_scalings() -> None:
    with pytest.raises(ValueError, match=r"rope.scaling.type is yarn, but the tensor rope_freqs.weight scales as well"):
        scaling_of(YARN, "rope_freqs.weight")
