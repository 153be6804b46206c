"""What config.json of each Hugging Face class may say.

An absent key has the default of the class in transformers, if files in the wild leave it out, and is refused
otherwise.
"""

from dataclasses import dataclass
from functools import partial

from pelton.error_text import shown
from pelton.loader.config_table import (
    ConfigTable,
    Fields,
    Key,
    constant,
    count,
    flag,
    full_attention,
    head_size_default,
    number,
    optional,
    periodic_windows,
    size,
)
from pelton.loader.derived import DERIVED
from pelton.loader.hf.rope import LAYER_ROPES, ONE_ROPE, RopeReader
from pelton.loader.rope import gemma3_context_length


@dataclass(frozen=True)
class HFClass:
    """A model class of transformers."""

    architecture: str
    """Key of Pelton's model registry."""
    model_type: str
    table: ConfigTable
    rope: RopeReader = ONE_ROPE


_PROVENANCE = {
    "_commit_hash", "_name_or_path", "is_llama_config", "name_or_path", "transformers.js_config",
    "transformers_version", "unsloth_fixed", "unsloth_version",
}  # fmt: skip
_IMPLEMENTATION = {
    "_attn_implementation", "_attn_implementation_autoset", "_flash_attn_2_enabled", "attn_implementation",
    "cache_implementation", "chunk_size_feed_forward", "dtype", "model_max_length", "tf_legacy_loss", "torch_dtype",
    "torchscript", "use_bfloat16", "use_cache", "use_flash_attn",
}  # fmt: skip
_TRAINING = {
    "attention_dropout", "finetuning_task", "gradient_checkpointing", "id2label", "initializer_range", "label2id",
    "neftune_noise_alpha", "problem_type", "pruned_heads",
}  # fmt: skip
_OUTPUTS = {
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
    "use_return_dict",
}  # fmt: skip
_TOKENS = {
    "bos_token_id", "decoder_start_token_id", "pad_token_id", "prefix", "sep_token_id", "tokenizer_class",
    "unk_token_id",
}  # fmt: skip
_OTHER_MODELS = {
    "cross_attention_hidden_size", "is_decoder", "task_specific_params", "tie_encoder_decoder",
}  # fmt: skip
_GENERATION = {
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "remove_invalid_values", "repetition_penalty",
    "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
}  # fmt: skip
"""Defaults of another library's sampling, which transformers 4 kept with the model."""
_HARMLESS = frozenset(_PROVENANCE | _IMPLEMENTATION | _TRAINING | _OUTPUTS | _TOKENS | _OTHER_MODELS | _GENERATION)

QUANTIZATION_KEYS = frozenset({"compression_config", "quantization", "quantization_config"})
_READ_ELSEWHERE = QUANTIZATION_KEYS | {"architectures", "auto_map", "eos_token_id", "model_type"}
"""What `hf/config.py` reads itself."""

_FIXED: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
}
_SILU: dict[str, tuple[object, ...]] = {"hidden_act": ("silu", "swish")}

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _same_heads(fields: Fields) -> int:
    return int(fields["num_heads"])


def _bias_of_attention(fields: Fields) -> bool:
    return bool(fields["attention_bias"])


def _layer_types(name: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {shown(value)}")
    for kind in value:
        if kind not in (_FULL, _SLIDING):
            raise ValueError(f"{name} has {shown(kind)}, and Pelton implements {_FULL} and {_SLIDING}")
    return value


def _windows_by_type(fields: Fields, window: int | None) -> tuple[int | None, ...]:
    """`layer_windows` of a model that lists the kinds of its layers."""
    types = fields["layer_types"]
    if len(types) != fields["num_layers"]:
        raise ValueError(f"layer_types has {len(types)} entries for {fields['num_layers']} layers")
    if window is None and _SLIDING in types:
        raise ValueError(f"layer_types has {_SLIDING}, but there is no sliding_window")
    return tuple(window if kind == _SLIDING else None for kind in types)


def _no_windows(fields: Fields) -> tuple[int | None, ...]:
    return full_attention(fields) if fields["layer_types"] is None else _windows_by_type(fields, None)


def _same_window(fields: Fields) -> tuple[int | None, ...]:
    return (fields["sliding_window"],) * int(fields["num_layers"])


def _qwen_windows(fields: Fields) -> tuple[int | None, ...]:
    """Without a list of kinds, the layers from `max_window_layers` on have the window."""
    window = fields["sliding_window"] if fields["use_sliding_window"] else None
    if fields["layer_types"] is not None:
        return _windows_by_type(fields, window)
    first = fields["max_window_layers"]
    return tuple(window if layer >= first else None for layer in range(fields["num_layers"]))


def _gemma3_windows(fields: Fields) -> tuple[int | None, ...]:
    """A list of kinds wins over the pattern, which transformers writes beside it whatever the list says."""
    if fields["layer_types"] is not None:
        return _windows_by_type(fields, fields["sliding_window"])
    patterns = {fields[name] for name in ("pattern", "old_pattern") if fields[name] is not None} or {6}
    if len(patterns) == 2:
        raise ValueError("sliding_window_pattern and _sliding_window_pattern are both there, and differ")
    return periodic_windows(fields, patterns.pop())


_FIELDS = {
    "vocab_size": Key("vocab_size", size),
    "hidden_size": Key("hidden_size", size),
    "intermediate_size": Key("intermediate_size", size),
    "num_layers": Key("num_hidden_layers", size),
    "num_heads": Key("num_attention_heads", size),
    "num_kv_heads": Key("num_key_value_heads", size, default=_same_heads, null=_same_heads),
    "head_size": Key("head_dim", size, default=head_size_default, null=head_size_default),
    "rms_norm_eps": Key("rms_norm_eps", number),
    "max_position_embeddings": Key("max_position_embeddings", size),
    "tie_word_embeddings": Key("tie_word_embeddings", flag, constant(False)),
}

_LAYER_TYPES = optional("layer_types", _layer_types)
_ATTENTION_BIAS = Key("attention_bias", flag, constant(False))
_MLP_BIAS = Key("mlp_bias", flag, constant(False))
_WINDOW = Key("sliding_window", size, default=constant(4096), null=constant(None))
_QWEN_WINDOW_INPUTS = {
    "use_sliding_window": Key("use_sliding_window", flag, constant(False)),
    "sliding_window": _WINDOW,
    "max_window_layers": Key("max_window_layers", count, constant(28)),
    "layer_types": _LAYER_TYPES,
}

_table = partial(ConfigTable, harmless=_HARMLESS, read_elsewhere=_READ_ELSEWHERE)

_LLAMA = _table(
    fields=_FIELDS | {"attention_bias": _ATTENTION_BIAS, "mlp_bias": _MLP_BIAS},
    inputs={"layer_types": _LAYER_TYPES},
    derived=DERIVED | {"attention_output_bias": _bias_of_attention, "layer_windows": _no_windows},
    # Of the time of Llama 1.
    same_as={"max_sequence_length": "max_position_embeddings"},
    fixed=_FIXED | _SILU | {"rope_interleaved": (False,), "sliding_window": (None,)},
)
_MISTRAL = _table(
    fields=_FIELDS | {
        "num_kv_heads": Key("num_key_value_heads", size, default=constant(8), null=_same_heads),
    },
    inputs={"sliding_window": _WINDOW},
    derived=DERIVED | {"layer_windows": _same_window},
    fixed=_FIXED | _SILU | {"attention_bias": (False,), "mlp_bias": (False,), "layer_types": (None,)},
)  # fmt: skip
_QWEN2 = _table(
    fields=_FIELDS | {
        "num_kv_heads": Key("num_key_value_heads", size, default=constant(32), null=_same_heads),
    },
    inputs=_QWEN_WINDOW_INPUTS,
    derived=DERIVED | {"layer_windows": _qwen_windows, "attention_bias": constant(True)},
    fixed=_FIXED | _SILU | {"attention_bias": (True,), "mlp_bias": (False,), "use_mrope": (False,)},
)  # fmt: skip
_QWEN3 = _table(
    fields=_FIELDS | {
        "num_kv_heads": Key("num_key_value_heads", size, default=constant(32), null=_same_heads),
        "head_size": Key("head_dim", size, constant(128)),
        "attention_bias": _ATTENTION_BIAS,
    },
    inputs=_QWEN_WINDOW_INPUTS,
    derived=DERIVED | {"layer_windows": _qwen_windows, "attention_output_bias": _bias_of_attention},
    fixed=_FIXED | _SILU | {"mlp_bias": (False,), "use_mrope": (False,)},
)  # fmt: skip
_GEMMA3 = _table(
    # The larger models' files rely on these defaults.
    fields=_FIELDS | {
        "vocab_size": Key("vocab_size", size, constant(262_208)),
        "num_heads": Key("num_attention_heads", size, constant(8)),
        "num_kv_heads": Key("num_key_value_heads", size, constant(4)),
        "head_size": Key("head_dim", size, constant(256)),
        "rms_norm_eps": Key("rms_norm_eps", number, constant(1e-6)),
        "max_position_embeddings": Key("max_position_embeddings", size, constant(131_072)),
        "tie_word_embeddings": Key("tie_word_embeddings", flag, constant(True)),
        "attention_bias": _ATTENTION_BIAS,
        "attention_softcap": optional("attn_logit_softcapping", number),
        "logit_softcap": optional("final_logit_softcapping", number),
    },
    inputs={
        "query_scalar": Key("query_pre_attn_scalar", number, constant(256.0)),
        "sliding_window": _WINDOW,
        "layer_types": _LAYER_TYPES,
        "pattern": optional("sliding_window_pattern", size),
        "old_pattern": optional("_sliding_window_pattern", size),
    },
    derived=DERIVED | {
        "attention_scale": lambda fields: fields["query_scalar"] ** -0.5,
        "attention_output_bias": _bias_of_attention,
        "layer_windows": _gemma3_windows,
        "max_position_embeddings": gemma3_context_length,
    },
    fixed=_FIXED | {
        "hidden_act": ("gelu_pytorch_tanh",),
        "hidden_activation": ("gelu_pytorch_tanh",),
        "mlp_bias": (False,),
        "use_bidirectional_attention": (False, None),
    },
)  # fmt: skip

HF_CLASSES = {
    "LlamaForCausalLM": HFClass("llama", "llama", _LLAMA),
    "MistralForCausalLM": HFClass("llama", "mistral", _MISTRAL),
    "Qwen2ForCausalLM": HFClass("qwen2", "qwen2", _QWEN2),
    "Qwen3ForCausalLM": HFClass("qwen3", "qwen3", _QWEN3),
    "Gemma3ForCausalLM": HFClass("gemma3", "gemma3_text", _GEMMA3, LAYER_ROPES),
}
"""Name in `architectures` -> how to read it."""
