"""The rotary embedding as config.json describes it.

transformers 4 writes `rope_theta` and `rope_scaling`, transformers 5 puts both into `rope_parameters`; either
may be found, and the scaling's kind is called `rope_type` or, in old files, `type`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pelton.config import LinearScaling, Llama3Scaling, RopeConfig, RopeScaling, YarnScaling
from pelton.error_text import shown
from pelton.loader.config_table import (
    ConfigTable,
    Fields,
    Key,
    constant,
    flag,
    key_names,
    number,
    optional,
    read_fields,
    size,
)
from pelton.loader.rope import yarn_magnitude

_FULL, _SLIDING = "full_attention", "sliding_attention"
_WHERE_SLIDING = f"rope_parameters.{_SLIDING}"
_ORIGINAL_LENGTH = Key(
    "original_max_position_embeddings", size, default=lambda fields: fields["max_position_embeddings"]
)


@dataclass(frozen=True)
class RopeReader:
    """How config.json describes the rotary embeddings of a kind of model."""

    keys: frozenset[str]
    """The keys that `read` looks at, and nothing else does."""
    read: Callable[[Mapping[str, object], Fields], Fields]
    """config.json, and the fields without rotary embeddings -> `rope` and `sliding_rope`."""


def read_rope(config: Mapping[str, object], fields: Fields) -> Fields:
    """`rope` and `sliding_rope` of a model with one rotary embedding for all layers.

    Of `fields`, it needs `max_position_embeddings`. Raises ValueError that names the key.
    """
    where, parameters = _parameters(config)
    rope = RopeConfig(_theta(where, parameters, config, "rope_theta", 10_000.0), _scaling(where, parameters, fields))
    return {"rope": rope, "sliding_rope": rope}


def read_layer_ropes(config: Mapping[str, object], fields: Fields) -> Fields:
    """The same for a model with one for each kind of layer, as Gemma 3 has them.

    What transformers 4 calls `rope_scaling` is for layers with full attention alone.
    """
    where, full = _parameters(config)
    sliding: dict[str, object] = {}
    if where == "rope_parameters":
        if unknown := set(full) - {_FULL, _SLIDING}:
            raise ValueError(f"Pelton does not know the key {key_names(unknown)} of rope_parameters")
        where = f"rope_parameters.{_FULL}"
        sliding = _object(_WHERE_SLIDING, full.get(_SLIDING))
        full = _object(where, full.get(_FULL))
    theta = _theta(where, full, config, "rope_theta", 1_000_000.0)
    sliding_theta = _theta(_WHERE_SLIDING, sliding, config, "rope_local_base_freq", 10_000.0)
    return {
        "rope": RopeConfig(theta, _scaling(where, full, fields)),
        "sliding_rope": RopeConfig(sliding_theta, _scaling(_WHERE_SLIDING, sliding, fields)),
    }


_ROPE_KEYS = frozenset({"rope_parameters", "rope_scaling", "rope_theta"})
ONE_ROPE = RopeReader(_ROPE_KEYS, read_rope)
LAYER_ROPES = RopeReader(_ROPE_KEYS | {"rope_local_base_freq"}, read_layer_ropes)


def _parameters(config: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Name and content of the object that describes the rotary embedding; empty where there is none."""
    given = [name for name in ("rope_parameters", "rope_scaling") if config.get(name) not in (None, {})]
    objects = [_object(name, config[name]) for name in given]
    if len(objects) == 2 and objects[0] != objects[1]:
        raise ValueError("rope_parameters and rope_scaling are both there, and differ")
    return (given[0], objects[0]) if given else ("rope_scaling", {})


def _object(name: str, value: object) -> dict[str, object]:
    """A JSON object; null is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {shown(value)}")
    return value


def _theta(
    where: str, parameters: Mapping[str, object], config: Mapping[str, object], outer_name: str, default: float
) -> float:
    """The base frequency, which stands in `parameters`, or in `config` under `outer_name`, or in both alike."""
    inner = number("rope_theta", parameters["rope_theta"]) if "rope_theta" in parameters else None
    outer = number(outer_name, config[outer_name]) if outer_name in config else None
    if None not in (inner, outer) and inner != outer:
        raise ValueError(f"{outer_name} is {outer!r}, but {inner!r} in {where}")
    return next((theta for theta in (inner, outer) if theta is not None), default)


def _scaling(where: str, parameters: Mapping[str, object], fields: Fields) -> RopeScaling | None:
    kinds = [parameters[name] for name in ("rope_type", "type") if name in parameters] or ["default"]
    kind = kinds[0]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{where} has the type {shown(kind)}, and Pelton supports {', '.join(_KINDS)}")
    if kinds[-1] != kind:
        raise ValueError(f"{where} has the rope_type {kind!r}, but the type {shown(kinds[-1])}")
    table, make = _KINDS[kind]
    try:
        return make(read_fields(parameters, table, fields))
    except ValueError as error:
        raise ValueError(f"in {where} of type {kind}, {error}") from None


def _table(inputs: Mapping[str, Key], **fixed: tuple[Any, ...]) -> ConfigTable:
    return ConfigTable(
        inputs=inputs,
        fixed={"partial_rotary_factor": (1.0,), **fixed},
        # A note that YaRN's first models carry.
        harmless=frozenset({"finetuned"}),
        read_elsewhere=frozenset({"rope_theta", "rope_type", "type"}),
    )


def _linear(fields: Fields) -> LinearScaling:
    return LinearScaling(fields["factor"])


def _llama3(fields: Fields) -> Llama3Scaling:
    return Llama3Scaling(
        factor=fields["factor"],
        low_freq_factor=fields["low_freq_factor"],
        high_freq_factor=fields["high_freq_factor"],
        original_max_position_embeddings=fields["original_length"],
    )


def _yarn(fields: Fields) -> YarnScaling:
    return YarnScaling(
        factor=fields["factor"],
        original_max_position_embeddings=fields["original_length"],
        attention_factor=_yarn_attention_factor(fields),
        beta_fast=fields["beta_fast"],
        beta_slow=fields["beta_slow"],
        truncate=fields["truncate"],
    )


def _yarn_attention_factor(fields: Fields) -> float:
    """`attention_factor` is the whole; `attn_factor`, of YaRN's own code, multiplies what YaRN recommends."""
    if fields["attention_factor"] is not None:
        if fields["attn_factor"] is not None:
            raise ValueError("attention_factor and attn_factor exclude each other")
        return float(fields["attention_factor"])
    factor, weight, weight_all = fields["factor"], fields["mscale"], fields["mscale_all_dim"]
    if weight is None or weight_all is None:
        magnitude = yarn_magnitude(factor)
    else:
        magnitude = yarn_magnitude(factor, weight) / yarn_magnitude(factor, weight_all)
    return magnitude * (1.0 if fields["attn_factor"] is None else float(fields["attn_factor"]))


_KINDS: dict[str, tuple[ConfigTable, Callable[[Fields], RopeScaling | None]]] = {
    "default": (_table({}), lambda _: None),
    "linear": (_table({"factor": Key("factor", number)}), _linear),
    "llama3": (
        _table({
            "factor": Key("factor", number),
            "low_freq_factor": Key("low_freq_factor", number),
            "high_freq_factor": Key("high_freq_factor", number),
            "original_length": _ORIGINAL_LENGTH,
        }),
        _llama3,
    ),
    "yarn": (
        _table(
            {
                "factor": Key("factor", number),
                "original_length": _ORIGINAL_LENGTH,
                "attention_factor": optional("attention_factor", number),
                "attn_factor": optional("attn_factor", number),
                "mscale": optional("mscale", number),
                "mscale_all_dim": optional("mscale_all_dim", number),
                "beta_fast": Key("beta_fast", number, constant(32.0), constant(32.0)),
                "beta_slow": Key("beta_slow", number, constant(1.0), constant(1.0)),
                "truncate": Key("truncate", flag, constant(True)),
            },
            extrapolation_factor=(1.0,),
        ),
        _yarn,
    ),
}  # fmt: skip
"""`rope_type` -> its keys, and how they become a scaling (transformers, modeling_rope_utils.py)."""
