from typing import Any

import pytest
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pelton.config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from pelton.loader.hf.rope import read_layer_ropes, read_rope
from pelton.loader.rope import context_length, gemma3_context_length

FIELDS = {"max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def rope_of(config: dict[str, Any]) -> RopeConfig:
    fields = read_rope(config, FIELDS)
    assert fields["rope"] is fields["sliding_rope"]
    rope = fields["rope"]
    assert isinstance(rope, RopeConfig)
    return rope


def yarn_of(**parameters: Any) -> YarnScaling:
    scaling = rope_of({"rope_scaling": {**YARN, **parameters}}).scaling
    assert isinstance(scaling, YarnScaling)
    return scaling


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, RopeConfig(1e4)),
        ({"rope_theta": 500000, "rope_scaling": None}, RopeConfig(5e5)),
        ({"rope_theta": 1e6, "rope_scaling": {}, "rope_parameters": None}, RopeConfig(1e6)),
        ({"rope_scaling": {"type": "default"}}, RopeConfig(1e4)),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, RopeConfig(1e6)),
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1000000}, RopeConfig(1e6)),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1.0}}, RopeConfig(1e6)),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeConfig(1e4, LinearScaling(4.0))),
        (
            {"rope_parameters": {"rope_type": "linear", "type": "linear", "factor": 4.0, "rope_theta": 5e5}},
            RopeConfig(5e5, LinearScaling(4.0)),
        ),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 1024))),
        (
            {"rope_scaling": LLAMA3, "rope_parameters": LLAMA3},
            RopeConfig(1e4, Llama3Scaling(8.0, 1.0, 4.0, 1024)),
        ),
        (
            {"rope_scaling": {k: v for k, v in LLAMA3.items() if not k.startswith("original")}},
            RopeConfig(1e4, Llama3Scaling(8.0, 1.0, 4.0, 4096)),
        ),
    ],
)
def test_spellings(config: dict[str, Any], expected: RopeConfig) -> None:
    assert rope_of(config) == expected


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"factor": 0.5},
        {"factor": 40},
        {"attention_factor": 0.75},
        {"attention_factor": 0.75, "mscale": 0.7, "mscale_all_dim": 0.4},
        {"attention_factor": None, "mscale": 0.707, "mscale_all_dim": 1.0},
        {"mscale": 0.707},
        {"mscale_all_dim": 0.707, "mscale": None},
        {"beta_fast": 16, "beta_slow": 2.0, "truncate": False},
        {"beta_fast": None, "beta_slow": None},
        {"type": "yarn", "finetuned": True},
    ],
)
def test_yarn_as_transformers_computes_it(parameters: dict[str, Any]) -> None:
    scaling = yarn_of(**parameters)
    config = LlamaConfig(max_position_embeddings=4096, rope_parameters={**YARN, **parameters, "rope_theta": 1e4})
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    assert scaling.attention_factor == pytest.approx(attention_factor, rel=1e-15)
    assert (scaling.factor, scaling.original_max_position_embeddings) == (parameters.get("factor", 4.0), 1024)
    assert scaling.beta_fast == (parameters.get("beta_fast") or 32)
    assert scaling.beta_slow == (parameters.get("beta_slow") or 1)
    assert scaling.truncate == parameters.get("truncate", True)


def test_attn_factor_multiplies_what_yarn_recommends() -> None:
    assert yarn_of(attn_factor=0.5).attention_factor == yarn_of().attention_factor / 2


def test_the_original_length_of_yarn_defaults_to_the_whole() -> None:
    assert rope_of({"rope_scaling": {"type": "yarn", "factor": 4.0}}).scaling == YarnScaling(
        4.0, 4096, yarn_of().attention_factor
    )


@pytest.mark.parametrize(
    ("scaling", "expected", "expected_of_gemma"),
    [
        ({}, 4096, 4096),
        ({"type": "linear", "factor": 2.5}, 10240, 4096),
        (LLAMA3, 4096, 4096),
        (YARN, 4096, 4096),
        (YARN | {"factor": 8.0}, 8192, 8192),
        ({"type": "yarn", "factor": 4.0}, 16384, 16384),
    ],
)
def test_context_length(scaling: dict[str, Any], expected: int, expected_of_gemma: int) -> None:
    fields = FIELDS | read_rope({"rope_scaling": scaling}, FIELDS)
    assert context_length(fields) == expected
    assert gemma3_context_length(fields) == expected_of_gemma


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"rope_theta": 5e5, "rope_local_base_freq": 2e4},
        {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_scaling": YARN, "rope_theta": 5e5},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5}}},
        {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}, "full_attention": None}},
        {"rope_parameters": {"sliding_attention": {"rope_theta": 2e4}}, "rope_theta": 5e5},
    ],
)
def test_layers_of_gemma_as_transformers_reads_them(config: dict[str, Any]) -> None:
    ropes = read_layer_ropes(config, FIELDS)
    theirs = Gemma3TextConfig(max_position_embeddings=4096, **config).rope_parameters
    for ours, kind in ((ropes["rope"], "full_attention"), (ropes["sliding_rope"], "sliding_attention")):
        assert ours.theta == theirs[kind]["rope_theta"]
        names = {type(None): "default", LinearScaling: "linear", YarnScaling: "yarn"}
        assert names[type(ours.scaling)] == theirs[kind]["rope_type"]
        assert getattr(ours.scaling, "factor", None) == theirs[kind].get("factor")


SUPPORTED = "and Pelton supports default, linear, llama3, yarn"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, f"rope_scaling has the type 'dynamic', {SUPPORTED}"),
        ({"rope_parameters": {"rope_type": "longrope"}}, f"rope_parameters has the type 'longrope', {SUPPORTED}"),
        ({"rope_scaling": {"type": "su"}}, "has the type 'su'"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, "has the type 'mrope'"),
        ({"rope_scaling": {"type": "proportional"}}, "has the type 'proportional'"),
        ({"rope_scaling": {"type": ["yarn"]}}, r"has the type \['yarn'\]"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn"}}, "has the rope_type 'linear', but the type 'yarn'"),
        ({"rope_scaling": {"factor": 2.0}}, "in rope_scaling of type default, .* does not know the key factor"),
        ({"rope_scaling": {"type": "linear"}}, "in rope_scaling of type linear, the key factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "factor must be positive"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor must be a number"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, r"high_freq_factor \(1.0\) must be above"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "of type llama3, the key low_freq_factor is missing"),
        ({"rope_scaling": YARN | {"long_factor": [1.0]}}, "of type yarn, Pelton does not know the key long_factor"),
        ({"rope_scaling": YARN | {"factor": None}}, "factor must be a number, got None"),
        ({"rope_scaling": YARN | {"truncate": None}}, "truncate must be true or false"),
        ({"rope_scaling": YARN | {"beta_fast": 0.5}}, r"beta_fast \(0.5\) must be above beta_slow"),
        ({"rope_scaling": YARN | {"original_max_position_embeddings": 0}}, "original_max_position_embeddings must be"),
        ({"rope_scaling": YARN | {"extrapolation_factor": 2.0}}, "extrapolation_factor is 2.0"),
        ({"rope_scaling": YARN | {"attention_factor": 1.0, "attn_factor": 1.0}}, "attn_factor exclude each other"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object, got 'yarn'"),
        ({"rope_parameters": 5}, "rope_parameters must be an object"),
        ({"rope_parameters": False}, "rope_parameters must be an object"),
        (
            {"rope_scaling": YARN, "rope_parameters": LLAMA3},
            "rope_parameters and rope_scaling are both there, and diff",
        ),
        (
            {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}},
            "rope_theta is 500000.0, but 10000.0 in rope_par",
        ),
        ({"rope_theta": None}, "rope_theta must be a number, got None"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"full_attention": {}}}, "does not know the key full_attention"),
    ],
)
def test_refuses(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_rope(config, FIELDS)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"rope_parameters": {"rope_theta": 1e6}}, "does not know the key rope_theta of rope_parameters"),
        ({"rope_parameters": {"full_attention": 1}}, "rope_parameters.full_attention must be an object, got 1"),
        ({"rope_parameters": {"sliding_attention": []}}, "rope_parameters.sliding_attention must be an object"),
        (
            {"rope_parameters": {"sliding_attention": {"rope_theta": 1e4}}, "rope_local_base_freq": 2e4},
            "rope_local_base_freq is 20000.0, but 10000.0 in rope_parameters.sliding_attention",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "rope_parameters.full_attention has the type 'dynamic'",
        ),
        ({"rope_scaling": YARN, "rope_parameters": {"full_attention": {}}}, "are both there, and differ"),
    ],
)
def test_refuses_layers(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_layer_ropes(config, FIELDS)
