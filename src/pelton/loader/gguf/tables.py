"""What the metadata `<architecture>.*` of a GGUF file may say."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pelton.error_text import shown
from pelton.loader.config_table import (
    ConfigTable,
    Fields,
    Key,
    constant,
    full_attention,
    head_size_default,
    number,
    optional,
    periodic_windows,
    size,
)
from pelton.loader.derived import DERIVED
from pelton.loader.rope import gemma3_context_length


@dataclass(frozen=True)
class GGUFArchitecture:
    """An architecture of GGUF files."""

    table: ConfigTable
    """Its keys, without the architecture's prefix."""
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field of `DecoderConfig` -> projections of a block. Whether they have biases, only the tensors say."""


def _gemma3_scale(fields: Fields) -> float:
    """Files do not have `query_pre_attn_scalar`, which is another one in the largest model (27B) alone."""
    if fields["num_layers"] == 62:
        return float((fields["hidden_size"] / fields["num_heads"]) ** -0.5)
    return float(fields["head_size"] ** -0.5)


def _pattern(name: str, value: object) -> int | list[bool]:
    """A period, or for each layer whether it has a window."""
    if isinstance(value, np.ndarray):
        if value.dtype != np.bool_:
            raise ValueError(f"{name} must be an integer or an array of booleans, got {shown(value)}")
        windowed: list[bool] = value.tolist()
        return windowed
    return size(name, value)


def _gemma3_windows(fields: Fields) -> tuple[int | None, ...]:
    window, pattern, num_layers = fields["sliding_window"], fields["pattern"], fields["num_layers"]
    if window is None:
        return full_attention(fields)
    if isinstance(pattern, int):
        return periodic_windows(fields, pattern)
    if len(pattern) != num_layers:
        raise ValueError(f"attention.sliding_window_pattern has {len(pattern)} entries for {num_layers} layers")
    return tuple(window if windowed else None for windowed in pattern)


_FIELDS = {
    "vocab_size": Key("vocab_size", size),
    "hidden_size": Key("embedding_length", size),
    "intermediate_size": Key("feed_forward_length", size),
    "num_layers": Key("block_count", size),
    "num_heads": Key("attention.head_count", size),
    "num_kv_heads": Key("attention.head_count_kv", size, lambda fields: fields["num_heads"]),
    "head_size": Key("attention.key_length", size, head_size_default),
    "rms_norm_eps": Key("attention.layer_norm_rms_epsilon", number),
    "max_position_embeddings": Key("context_length", size),
}
_INPUTS = {"rope_theta": Key("rope.freq_base", number, constant(10_000.0))}
_SAME_AS = {"attention.value_length": "head_size", "rope.dimension_count": "head_size"}
_FIXED: dict[str, tuple[object, ...]] = {"attention.causal": (True,)}

_ATTENTION_BIASES = {"attention_bias": ("attn_q", "attn_k", "attn_v"), "attention_output_bias": ("attn_output",)}
_MLP_BIASES = {"mlp_bias": ("ffn_gate", "ffn_up", "ffn_down")}

GGUF_ARCHITECTURES = {
    "llama": GGUFArchitecture(
        ConfigTable(
            fields=_FIELDS,
            inputs=_INPUTS,
            derived=DERIVED,
            same_as=_SAME_AS,
            fixed=_FIXED | {
                "expert_count": (0,),
                "expert_used_count": (0,),
                # The order of query and key rows that all files of this architecture have.
                "tensor_data_layout": ("Meta AI original pth",),
            },
        ),
        biases=_ATTENTION_BIASES | _MLP_BIASES,
    ),
    "qwen2": GGUFArchitecture(
        ConfigTable(
            fields=_FIELDS,
            inputs=_INPUTS,
            derived=DERIVED | {"attention_bias": constant(True)},
            same_as=_SAME_AS,
            fixed=_FIXED,
        )
    ),
    "qwen3": GGUFArchitecture(
        ConfigTable(fields=_FIELDS, inputs=_INPUTS, derived=DERIVED, same_as=_SAME_AS, fixed=_FIXED),
        biases=_ATTENTION_BIASES,
    ),
    "gemma3": GGUFArchitecture(
        ConfigTable(
            fields=_FIELDS | {
                "attention_softcap": optional("attn_logit_softcapping", number),
                "logit_softcap": optional("final_logit_softcapping", number),
            },
            inputs={
                "rope_theta": Key("rope.freq_base", number),
                "sliding_rope_theta": Key("rope.freq_base_swa", number, constant(10_000.0)),
                "sliding_window": optional("attention.sliding_window", size),
                "pattern": Key("attention.sliding_window_pattern", _pattern, constant(6)),
            },
            derived=DERIVED | {
                "attention_scale": _gemma3_scale,
                "layer_windows": _gemma3_windows,
                "max_position_embeddings": gemma3_context_length,
            },
            same_as=_SAME_AS,
            fixed=_FIXED,
        ),
        biases=_ATTENTION_BIASES,
    ),
}  # fmt: skip
"""`general.architecture` -> how to read it."""
