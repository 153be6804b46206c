"""Frequencies and angles against transformers' own."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pelton.config import LinearScaling, Llama3Scaling, RopeConfig, TensorScaling, YarnScaling
from pelton.layers import Rotary
from pelton.ops import Recorder, T
from tests.support.backends import numpy_backend, run_once

SCALINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "none": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0)),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        Llama3Scaling(8.0, 1.0, 4.0, 8192),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        YarnScaling(4.0, 32768, attention_factor=1.138629436111989),
    ),
    "yarn, own bounds": (
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 20.0,
            "beta_slow": 2.0,
            "attention_factor": 1.5,
            "truncate": False,
        },
        YarnScaling(40.0, 4096, attention_factor=1.5, beta_fast=20.0, beta_slow=2.0, truncate=False),
    ),
    "yarn, bounds beyond the dimensions": (
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "attention_factor": 1.0},
        YarnScaling(2.0, 8, attention_factor=1.0),
    ),
}


def reference(head_size: int, theta: float, parameters: dict[str, Any]) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=2 * head_size,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": theta} | parameters,
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize(("head_size", "theta"), [(64, 1e5), (64, 1e4), (128, 5e5), (256, 1e6), (8, 1e4)])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_angles_are_those_of_transformers(head_size: int, theta: float, scaling: str) -> None:
    parameters, ours = SCALINGS[scaling]
    embedding = reference(head_size, theta, parameters)
    rotary = Rotary(RopeConfig(theta, ours), head_size)
    frequencies = rotary.frequencies()
    blended = not (ours is None or isinstance(ours, LinearScaling))
    # torch's power is off by an ulp here and there; blending rounds some more.
    np.testing.assert_allclose(frequencies, embedding.inv_freq.numpy(), rtol=3e-7 if blended else 1.2e-7)

    op = Recorder("angles")
    rotation = rotary(op, op.input("positions", (T,), "int32"))
    positions = {"positions": np.arange(3000, dtype=np.int32)}
    angles = run_once(numpy_backend(), op.finish(rotation._asdict()), {T: 3000}, positions)
    cos, sin = embedding(torch.zeros(1), torch.arange(3000)[None])
    # The fastest dimensions, whose angles reach 3,000, have frequencies of equal bits without blending.
    atol = 1e-3 if blended else 3e-7
    np.testing.assert_allclose(angles["cos"], cos[0, :, : head_size // 2], rtol=0, atol=atol)
    np.testing.assert_allclose(angles["sin"], sin[0, :, : head_size // 2], rtol=0, atol=atol)


def test_divisors_from_the_checkpoint() -> None:
    rotary = Rotary(RopeConfig(1e4, TensorScaling()), 8)
    (divisors,) = rotary.parameters()
    assert (divisors.name, divisors.shape) == ("rope_divisors", (4,))
    divisors.load(np.array([1.0, 1.0, 2.0, 8.0], np.float32))
    plain = Rotary(RopeConfig(1e4), 8).frequencies()
    np.testing.assert_array_equal(rotary.frequencies(), plain / np.array([1, 1, 2, 8], np.float32))


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-42, np.nan, np.inf])
def test_divisors_that_cannot_be(bad: float) -> None:
    rotary = Rotary(RopeConfig(1e4, TensorScaling()), 4)
    (divisors,) = rotary.parameters()
    with pytest.raises(ValueError, match="rope_divisors must hold finite numbers above 0"):
        divisors.load(np.array([1.0, bad], np.float32))


def test_nothing_is_allocated_before_it_is_needed() -> None:
    Rotary(RopeConfig(1e4), 10**12)
