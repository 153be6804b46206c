"""The rotary embedding as a GGUF file describes it."""

from collections.abc import Callable, Collection, Mapping

from pelton.config import LinearScaling, RopeConfig, RopeScaling, TensorScaling, YarnScaling
from pelton.error_text import shown
from pelton.loader.config_table import ConfigTable, Fields, Key, constant, number, read_fields, size
from pelton.loader.rope import yarn_magnitude

SCALING_PREFIX = "rope.scaling."
FACTORS_TENSOR = "rope_freqs.weight"
"""A divisor per frequency, which converters write for the scaling of Llama 3."""


def read_rope(scaling_keys: Mapping[str, object], fields: Fields, tensor_names: Collection[str]) -> Fields:
    """`rope` and `sliding_rope`.

    `scaling_keys` come without `SCALING_PREFIX`; `fields` is what the architecture's table says of the others.
    Where layers with windows have their own base frequency, the scaling is not theirs. Raises ValueError that
    names the key.
    """
    rope = RopeConfig(fields["rope_theta"], _scaling(scaling_keys, fields, tensor_names))
    sliding_theta = fields.get("sliding_rope_theta")
    return {"rope": rope, "sliding_rope": rope if sliding_theta is None else RopeConfig(sliding_theta)}


def _scaling(foreign: Mapping[str, object], fields: Fields, tensor_names: Collection[str]) -> RopeScaling | None:
    kind = foreign.get("type", "linear" if "factor" in foreign else "none")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{SCALING_PREFIX}type is {shown(kind)}, and Pelton supports {', '.join(_KINDS)}")
    table, make = _KINDS[kind]
    try:
        scaling = make(read_fields(foreign, table, fields))
    except ValueError as error:
        raise ValueError(f"with {SCALING_PREFIX}type {kind}, in {SCALING_PREFIX}*, {error}") from None
    if FACTORS_TENSOR not in tensor_names:
        return scaling
    if scaling is not None:
        raise ValueError(f"{SCALING_PREFIX}type is {kind}, but the tensor {FACTORS_TENSOR} scales as well")
    return TensorScaling()


def _table(inputs: Mapping[str, Key], **fixed: tuple[object, ...]) -> ConfigTable:
    return ConfigTable(
        inputs=inputs,
        fixed=fixed,
        # Only YaRN's inputs include the second.
        harmless=frozenset({"finetuned", "original_context_length"}),
        read_elsewhere=frozenset({"type"}),
    )


def _linear(fields: Fields) -> LinearScaling:
    return LinearScaling(fields["factor"])


def _yarn(fields: Fields) -> YarnScaling:
    return YarnScaling(
        factor=fields["factor"],
        original_max_position_embeddings=fields["original_length"],
        attention_factor=fields["attention_factor"] * yarn_magnitude(fields["factor"]),
        beta_fast=fields["beta_fast"],
        beta_slow=fields["beta_slow"],
    )


_KINDS: dict[str, tuple[ConfigTable, Callable[[Fields], RopeScaling | None]]] = {
    "none": (_table({}, factor=(1.0, 0.0), attn_factor=(1.0,)), lambda _: None),
    "linear": (_table({"factor": Key("factor", number)}, attn_factor=(1.0,)), _linear),
    "yarn": (
        _table(
            {
                "factor": Key("factor", number),
                "original_length": Key(
                    "original_context_length", size, default=lambda fields: fields["max_position_embeddings"]
                ),
                "attention_factor": Key("attn_factor", number, constant(1.0)),
                "beta_fast": Key("yarn_beta_fast", number, constant(32.0)),
                "beta_slow": Key("yarn_beta_slow", number, constant(1.0)),
            },
            # Readers of the format disagree on what other values mean.
            yarn_attn_factor=(1.0,),
            yarn_ext_factor=(1.0,),
            yarn_log_multiplier=(0.0,),
        ),
        _yarn,
    ),
}
"""`rope.scaling.type` -> its keys, and how they become a scaling. As in llama.cpp, a factor alone is linear."""
