"""What is read from the configurations that transformers writes, against the models that it builds from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from pelton.config import DecoderConfig
from pelton.layers.rotary import Rotary
from pelton.loader.hf.config import read_hf_config
from tests.support.hf_configs import older_spelling
from tests.support.tiny_models import SHAPE, VARIANTS, architecture_of, build, model_class


def read(config: dict[str, Any], folder: Path) -> DecoderConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_hf_config(folder)


def has_bias(*projections: nn.Module) -> bool:
    (answer,) = {projection.bias is not None for projection in projections}
    return answer


@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_the_model(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    model = build(variant.config, variant.options)
    model.config.architectures = [type(model).__name__]
    config = read(model.config.to_dict(), tmp_path)
    assert read(older_spelling(model.config.to_dict()), tmp_path) == config
    model.config.save_pretrained(tmp_path)
    assert read_hf_config(tmp_path) == config

    layers = model.model.layers
    attention, mlp = layers[0].self_attn, layers[0].mlp
    assert config.architecture == architecture_of(model.config)
    assert (config.vocab_size, config.hidden_size) == model.model.embed_tokens.weight.shape
    assert (config.intermediate_size, config.hidden_size) == mlp.gate_proj.weight.shape
    assert config.num_layers == len(layers)
    assert config.head_size == attention.head_dim
    assert config.num_heads * config.head_size == attention.q_proj.out_features
    assert config.num_kv_heads * config.head_size == attention.k_proj.out_features
    assert config.attention_scale == attention.scaling
    assert config.attention_bias == has_bias(attention.q_proj, attention.k_proj, attention.v_proj)
    assert config.attention_output_bias == has_bias(attention.o_proj)
    assert config.mlp_bias == has_bias(mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    assert config.tie_word_embeddings == (model.lm_head.weight is model.model.embed_tokens.weight)
    assert config.rms_norm_eps == model.config.rms_norm_eps
    assert config.attention_softcap == getattr(model.config, "attn_logit_softcapping", None)
    assert config.logit_softcap == getattr(model.config, "final_logit_softcapping", None)
    assert config.eos_token_ids == (model.config.eos_token_id,)
    same = getattr(model.config, "sliding_window", None)
    assert config.layer_windows == tuple(getattr(layer.self_attn, "sliding_window", same) for layer in layers)

    rotary = model.model.rotary_emb
    for ours, kind in ((config.rope, "full_attention"), (config.sliding_rope, "sliding_attention")):
        theirs = getattr(rotary, f"{kind}_inv_freq", None)
        if theirs is None:
            theirs = rotary.inv_freq
        np.testing.assert_allclose(Rotary(ours, config.head_size).frequencies(), theirs, rtol=1e-6)
        factor = getattr(rotary, f"{kind}_attention_scaling", getattr(rotary, "attention_scaling", 1.0))
        assert getattr(ours.scaling, "attention_factor", 1.0) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_the_defaults_of_the_class(name: str, tmp_path: Path) -> None:
    """A file without the keys that files in the wild leave out."""
    config_class = VARIANTS[name].config
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 30}
    if name != "gemma3":
        shape |= {"vocab_size": 320, "num_attention_heads": 32, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
    for options in ({}, {"use_sliding_window": True}) if "qwen" in name else ({},):
        full = config_class(**shape, **options)
        full.architectures = [model_class(config_class).__name__]
        sparse = {key: full.to_dict()[key] for key in ("model_type", "architectures", "eos_token_id")}
        assert read({**shape, **options, **sparse}, tmp_path) == read(full.to_dict(), tmp_path)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", ("num_key_value_heads", "head_dim")),
        ("mistral", ("sliding_window", "head_dim")),
        ("qwen2", ("sliding_window", "num_key_value_heads", "layer_types")),
        ("gemma3", ("layer_types", "rope_parameters", "use_bidirectional_attention")),
    ],
)
def test_nulls_of_the_class(name: str, keys: tuple[str, ...], tmp_path: Path) -> None:
    nulls: dict[str, Any] = dict.fromkeys(keys)
    full = VARIANTS[name].config(**{**SHAPE, **nulls})
    full.architectures = [model_class(type(full)).__name__]
    assert read({**full.to_dict(), **nulls}, tmp_path) == read(full.to_dict(), tmp_path)
