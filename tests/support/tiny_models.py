"""Tiny models with random weights, built by transformers: every architecture with every option that Pelton reads."""

import copy
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from pelton.config import DecoderConfig
from pelton.loader.hf.config import read_hf_config

torch.set_num_threads(1)  # two thread pools on the same cores slow each other down

Options = Mapping[str, Any]

VOCAB_SIZE = 320
SPECIAL_TOKENS = ("<|begin|>", "<|unused|>", "<|end|>")
EOS_TOKEN_ID = 2
CORPUS = (
    "The mill stood where the valley narrowed, and in spring the water came down fast enough to shake its walls. "
    "On the first Monday of April a stranger arrived with two mules and a crate; it held another kind of wheel."
)

SHAPE: Options = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 3e-3,  # so large that another value would be noticed
    "bos_token_id": 0,
    "eos_token_id": EOS_TOKEN_ID,
    "attn_implementation": "eager",  # the only one that has soft caps
}

_ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}
"""Model type of transformers -> architecture, where that has another name; it has the same in Pelton and in GGUF."""


@dataclass(frozen=True)
class Variant:
    """A configuration, and what would go unnoticed if one of its options were ignored."""

    config: type[PreTrainedConfig]
    options: Options
    """On top of `SHAPE`."""
    changes: tuple[Options, ...] = ()
    """Other values of these options: with the same weights, each must give other logits."""
    in_gguf: bool = True
    """Whether GGUF's metadata can express it."""


def rope(rope_type: str = "default", theta: float = 1e4, **parameters: Any) -> Options:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": theta, **parameters}}


def yarn(theta: float = 1e3, **parameters: Any) -> Options:
    return rope("yarn", theta, factor=4.0, original_max_position_embeddings=32, **parameters)


def gemma_rope(full: Options | None = None, sliding_theta: float = 1e2) -> Options:
    full = full or rope(theta=1e4)["rope_parameters"]
    sliding = {"rope_type": "default", "rope_theta": sliding_theta}
    return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


_LLAMA3: Options = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_QWEN2: Options = {"rms_norm_eps": 1e-3, **rope(theta=1e6)}
_QWEN3: Options = {"head_dim": 32, **rope(theta=1e6)}
_SLIDING: Options = {"use_sliding_window": True, "sliding_window": 8}
_GEMMA3: Options = {
    "num_hidden_layers": 7,  # 5 with a window, 1 without, 1 with
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 8,
    "pad_token_id": 1,
    **gemma_rope(),
}
_OTHER_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"] * 2 + ["full_attention"]
_FULL_SCALED = {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}

VARIANTS: dict[str, Variant] = {
    "llama": Variant(LlamaConfig, {}, (rope(theta=1e3), {"rms_norm_eps": 1e-5})),
    "llama tied": Variant(LlamaConfig, {"tie_word_embeddings": True, **rope(theta=5e5)}, (rope(theta=1e4),)),
    "llama mha": Variant(LlamaConfig, {"num_key_value_heads": 4}),
    "llama mqa": Variant(LlamaConfig, {"num_key_value_heads": 1}),
    "llama biases": Variant(LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "llama head size": Variant(LlamaConfig, {"head_dim": 24}),
    "llama linear": Variant(LlamaConfig, rope("linear", factor=4.0), (rope(),)),
    "llama llama3": Variant(
        LlamaConfig,
        {"tie_word_embeddings": True, "head_dim": 32, **rope("llama3", **_LLAMA3)},
        (rope(), rope("linear", factor=8.0), rope("llama3", **_LLAMA3 | {"high_freq_factor": 2.0})),
    ),
    "llama yarn": Variant(LlamaConfig, {"head_dim": 32, **yarn()}, (rope(theta=1e3), rope("linear", 1e3, factor=4.0))),
    "llama yarn attention factor": Variant(LlamaConfig, {"head_dim": 32, **yarn(attention_factor=0.8)}, (yarn(),)),
    "llama yarn mscale": Variant(
        LlamaConfig,
        {"head_dim": 32, **yarn(mscale=2.0, mscale_all_dim=0.5)},
        (yarn(), yarn(mscale=2.0), yarn(mscale=1.0, mscale_all_dim=0.5), yarn(mscale=2.0, mscale_all_dim=1.0)),
        in_gguf=False,
    ),
    "llama yarn not truncated": Variant(
        LlamaConfig, {"head_dim": 32, **yarn(truncate=False)}, (yarn(),), in_gguf=False
    ),
    "llama yarn betas": Variant(
        LlamaConfig,
        {"head_dim": 32, **yarn(beta_fast=2.0, beta_slow=0.5)},
        (yarn(), yarn(beta_fast=2.0), yarn(beta_slow=0.5)),
    ),
    "mistral": Variant(MistralConfig, {"sliding_window": None, **rope(theta=1e6)}, ({"sliding_window": 8},)),
    "mistral window": Variant(
        MistralConfig,
        {"sliding_window": 8, "head_dim": 32, "tie_word_embeddings": True},
        ({"sliding_window": None}, {"sliding_window": 7}, {"sliding_window": 9}),
        in_gguf=False,
    ),
    "qwen2": Variant(Qwen2Config, _QWEN2),
    "qwen2 tied": Variant(Qwen2Config, {"tie_word_embeddings": True, **_QWEN2}),
    "qwen2 last layers with windows": Variant(
        Qwen2Config,
        {"max_window_layers": 3, **_SLIDING, **_QWEN2},
        ({"use_sliding_window": False}, {"max_window_layers": 2}, {"sliding_window": 9}),
        in_gguf=False,
    ),
    "qwen2 some layers with windows": Variant(
        Qwen2Config,
        {"layer_types": ["sliding_attention", "full_attention"] * 2, **_SLIDING, **_QWEN2},
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, {"sliding_window": 7}),
        in_gguf=False,
    ),
    "qwen2 yarn": Variant(Qwen2Config, {**_QWEN2, "num_attention_heads": 2, **yarn()}, (rope(theta=1e3),)),
    "qwen3": Variant(Qwen3Config, _QWEN3),
    "qwen3 tied": Variant(Qwen3Config, {"tie_word_embeddings": True, **_QWEN3}),
    "qwen3 biases": Variant(Qwen3Config, {"attention_bias": True, **_QWEN3}),
    "qwen3 windows": Variant(
        Qwen3Config,
        {"max_window_layers": 0, **_SLIDING, **_QWEN3},
        ({"use_sliding_window": False},),
        in_gguf=False,
    ),
    "qwen3 yarn": Variant(Qwen3Config, {**_QWEN3, **yarn()}, (rope(theta=1e3),)),
    "gemma3": Variant(
        Gemma3TextConfig,
        _GEMMA3,
        (
            {"sliding_window": 7},
            {"sliding_window": 64},
            {"layer_types": ["sliding_attention"] * 7},
            gemma_rope(sliding_theta=1e4),
            gemma_rope(rope(theta=1e2)["rope_parameters"]),
        ),
    ),
    "gemma3 linear": Variant(
        Gemma3TextConfig, {**_GEMMA3, **gemma_rope(_FULL_SCALED)}, (gemma_rope(), gemma_rope(_FULL_SCALED, 1e4))
    ),
    "gemma3 untied": Variant(Gemma3TextConfig, {"tie_word_embeddings": False, **_GEMMA3}),
    "gemma3 biases": Variant(Gemma3TextConfig, {"attention_bias": True, **_GEMMA3}),
    "gemma3 soft caps": Variant(
        Gemma3TextConfig,
        {**_GEMMA3, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0, "layer_types": _OTHER_LAYERS},
        ({"attn_logit_softcapping": None}, {"final_logit_softcapping": None}, {"layer_types": None}),
    ),
    "gemma3 scale": Variant(
        Gemma3TextConfig, {**_GEMMA3, "query_pre_attn_scalar": 12}, ({"query_pre_attn_scalar": 32},), in_gguf=False
    ),
}


@cache
def tiny_model(name: str) -> PreTrainedModel:
    """A variant's model in float32, in which every parameter matters."""
    variant = VARIANTS[name]
    return randomized(build(variant.config, variant.options), seed=zlib.crc32(name.encode()))


def build(config: type[PreTrainedConfig], options: Options) -> PreTrainedModel:
    """A model with the weights that transformers begins with."""
    options = copy.deepcopy({**SHAPE, **options})
    if options.get("layer_types", "") is None:
        del options["layer_types"]
    return model_class(config)(config(**options)).eval()


def model_class(config: type[PreTrainedConfig]) -> type[PreTrainedModel]:
    return MODEL_FOR_CAUSAL_LM_MAPPING[config]


def architecture_of(config: PreTrainedConfig) -> str:
    return _ARCHITECTURES.get(config.model_type, config.model_type)


def decoder_config(model: PreTrainedModel) -> DecoderConfig:
    """As it is read from the config.json that transformers writes."""
    with TemporaryDirectory() as folder:
        values = model.config.to_dict() | {"architectures": [type(model).__name__]}
        (Path(folder) / "config.json").write_text(json.dumps(values))
        return read_hf_config(Path(folder))


def randomized(model: PreTrainedModel, *, seed: int, scale: float = 0.2) -> PreTrainedModel:
    """Draw every parameter anew, norms and biases too, which begin as ones and zeros."""
    generator = torch.Generator().manual_seed(seed)
    zero_centred = isinstance(model.config, Gemma3TextConfig)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
                if zero_centred:
                    parameter.sub_(1.0)
            else:
                parameter.normal_(0.0, scale, generator=generator)
    return model


def with_options(model: PreTrainedModel, variant: Variant, changes: Options) -> PreTrainedModel:
    """The same weights in a model with other options."""
    changed = build(variant.config, {**variant.options, **changes})
    changed.load_state_dict(model.state_dict())
    return changed


def logits_of(model: PreTrainedModel, token_ids: list[int], num_rows: int = 0) -> torch.Tensor:
    """Logits [n, V] at each of the last n tokens, or at all of them."""
    # Gemma3Attention of transformers has a soft cap of scores in its configuration and in its eager kernel, but forgets
    # to hand it from one to the other. Arguments of the model reach the kernel.
    cap = getattr(model.config, "attn_logit_softcapping", None)
    kernel_arguments = {} if cap is None else {"softcap": cap}
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), logits_to_keep=num_rows, **kernel_arguments).logits[0]


def logprobs_of(model: PreTrainedModel) -> Callable[[list[int], int], np.ndarray]:
    """A function: token ids, n -> log probabilities [n, V] of what follows each of the last n tokens."""

    def run(token_ids: list[int], num_rows: int) -> np.ndarray:
        # Float64 sums: the reference must not be the less exact of the two.
        return torch.log_softmax(logits_of(model, token_ids, num_rows).double(), dim=-1).numpy()

    return run


@cache
def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Byte-level byte pairs that cut digits apart, `smollm` in GGUF."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([CORPUS], trainer)
    assert backend.get_vocab_size() == VOCAB_SIZE
    return backend


def save_folder(model: PreTrainedModel, folder: Path, **kwargs: Any) -> Path:
    """A Hugging Face folder, tokenizer included; `kwargs` are for `save_pretrained`."""
    model.save_pretrained(folder, **kwargs)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    special = {"bos_token": SPECIAL_TOKENS[0], "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID], "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder
