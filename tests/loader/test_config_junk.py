"""Whatever a configuration says, it is read or refused with a ValueError."""

import copy
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.config import DecoderConfig
from pelton.loader.gguf.config import read_gguf_config
from pelton.loader.hf.config import read_hf_config
from tests.support.hf_configs import HF_CONFIGS

TENSOR_NAMES = [f"blk.{i}.attn_q.weight" for i in range(64)]

NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 6, 62, 2**24, 2**31, 2**40, 2**63, 10**30, 10**400, 0.0, 1.0, -0.5, 1e-300, 1e300]),
    st.integers(-2, 2**41),
    st.floats(),
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5))
WORDS = st.sampled_from(["yarn", "linear", "llama3", "default", "none", "silu", "full_attention", "LlamaForCausalLM"])
JSON_JUNK = st.recursive(
    st.one_of(PLAIN, WORDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(WORDS, st.text(max_size=5)), inner, max_size=4)
    ),
    max_leaves=8,
)

HF = {
    **HF_CONFIGS,
    "nested rotary embeddings": HF_CONFIGS["Gemma 3 270M"] | {
        "rope_local_base_freq": 1e4,
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "mscale": 1.0, "beta_fast": 32},
            "sliding_attention": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        },
    },
    "windows": HF_CONFIGS["Qwen3 0.6B"] | {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8},
}  # fmt: skip


def places(config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Paths to all values, those of nested objects included."""
    paths: list[tuple[str, ...]] = []
    for key, value in config.items():
        paths.append((key,))
        if isinstance(value, dict):
            paths += [(key, *rest) for rest in places(value)]
    return paths


@st.composite
def junk_in_hf(draw: st.DrawFn) -> dict[str, Any]:
    config = copy.deepcopy(HF[draw(st.sampled_from(sorted(HF)))])
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(places(config)))
        holder = config
        for key in path:
            holder = holder[key]
        if draw(st.booleans()) and draw(st.booleans()):
            del holder[last]
        else:
            holder[last] = draw(JSON_JUNK)
    return config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("junk")


@given(config=junk_in_hf(), eos=JSON_JUNK)
def test_hf(config: dict[str, Any], eos: object, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    try:
        result = read_hf_config(folder)
    except ValueError as error:
        assert str(error).startswith((str(folder / "config.json"), str(folder / "generation_config.json")))  # noqa: PT017
    else:
        assert isinstance(result, DecoderConfig)


_SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "context_length": 128,
    "embedding_length": 32,
    "block_count": 62,
    "feed_forward_length": np.array([64] * 62),
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 8,
    "rope.freq_base": 1e6,
}
_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
}
_GEMMA = {
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": np.array([True, False] * 31),
    "rope.freq_base_swa": 1e4,
    "final_logit_softcapping": 30.0,
    "rope.scaling.factor": 8.0,
}
GGUF = {
    "llama": _SHAPE | {"expert_count": 0},
    "qwen2": _SHAPE | _YARN,
    "qwen3": _SHAPE,
    "gemma3": _SHAPE | _GEMMA,
}
ARRAYS = st.builds(
    np.array,
    st.one_of(
        st.lists(st.booleans(), max_size=3),
        st.lists(st.floats(), max_size=3),
        st.lists(st.integers(-1, 2**31 - 1), max_size=3),
        st.sampled_from([[2] * 62, [True] * 62, [float("nan")] * 62, [0] * 62]),
    ),
)
GGUF_JUNK = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    NUMBERS.filter(lambda number: not isinstance(number, int) or number.bit_length() < 64),
    st.one_of(WORDS, st.text(max_size=5)),
    st.lists(st.text(max_size=5), max_size=3),
    ARRAYS,
)


@st.composite
def junk_in_gguf(draw: st.DrawFn) -> dict[str, Any]:
    architecture = draw(st.sampled_from(sorted(GGUF)))
    metadata = {f"{architecture}.{key}": value for key, value in GGUF[architecture].items()} | {
        "general.architecture": architecture,
        "general.quantization_version": 2,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": ["a", "b", "<|im_end|>"],
        "tokenizer.ggml.token_type": np.array([1, 1, 3]),
    }
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(metadata)))
        if draw(st.booleans()) and draw(st.booleans()):
            del metadata[name]
        else:
            metadata[name] = draw(GGUF_JUNK)
    return metadata


@given(metadata=junk_in_gguf(), more_tensors=st.sets(st.sampled_from(["output.weight", "rope_freqs.weight"])))
def test_gguf(metadata: dict[str, Any], more_tensors: Collection[str]) -> None:
    try:
        result = read_gguf_config(Path("junk.gguf"), metadata, [*TENSOR_NAMES, *more_tensors])
    except ValueError as error:
        assert str(error).startswith("junk.gguf: ")  # noqa: PT017
        assert "ambiguous" not in str(error)  # noqa: PT017 (a comparison of arrays, taken for one of values)
    else:
        assert isinstance(result, DecoderConfig)


def test_what_the_junk_replaces_is_read(folder: Path) -> None:
    """Otherwise refusals would prove nothing."""
    for config in HF.values():
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "generation_config.json").unlink(missing_ok=True)
        read_hf_config(folder)
    for architecture, values in GGUF.items():
        metadata = {f"{architecture}.{key}": value for key, value in values.items()}
        read_gguf_config(Path("junk.gguf"), {"general.architecture": architecture, **metadata}, TENSOR_NAMES)
