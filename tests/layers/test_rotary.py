import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pelton.layers import Rotary


@pytest.mark.parametrize(("head_size", "theta"), [(64, 1e5), (64, 1e4), (128, 5e5), (8, 1e4)])
def test_tables_are_those_of_transformers(head_size: int, theta: float) -> None:
    config = LlamaConfig(
        hidden_size=2 * head_size,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    embedding = LlamaRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.arange(3000)[None])
    rotary = Rotary(head_size=head_size, theta=theta, num_positions=3000)
    # Equal angles; the two libraries' cos and sin differ by an ulp here and there.
    np.testing.assert_allclose(rotary.cos, cos[0, :, : head_size // 2], rtol=0, atol=2e-7)
    np.testing.assert_allclose(rotary.sin, sin[0, :, : head_size // 2], rtol=0, atol=2e-7)


def test_tables_are_computed_once_when_they_are_read() -> None:
    rotary = Rotary(head_size=10**9, theta=1e4, num_positions=10**12)
    assert vars(rotary) == {"_head_size": 10**9, "_theta": 1e4, "_num_positions": 10**12}
    rotary = Rotary(head_size=8, theta=1e4, num_positions=16)
    assert rotary.cos is rotary.cos
    assert rotary.sin is rotary.sin
