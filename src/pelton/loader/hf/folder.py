"""The files of a model, by name: in a folder on this machine, or in a repository of the hub."""

import re
from collections.abc import Collection
from pathlib import Path

from pelton.error_text import check_name, listed, shown
from pelton.loader.model_files import PICKLE
from pelton.loader.text_files import read_json

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
LEGACY_CHAT_TEMPLATE = "chat_template.json"
"""Of older processors."""
MORE_TEMPLATES = "additional_chat_templates"
"""A folder with one `.jinja` file per template."""
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Names the shards. As in transformers, it does not count beside a `model.safetensors`."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

_TEXT_FILES = frozenset({
    CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, CHAT_TEMPLATE, LEGACY_CHAT_TEMPLATE,
})  # fmt: skip
_ADAPTER = "adapter_config.json"
_SHARD = re.compile(r"(.+-)\d+(-of-\d+\.safetensors)")


def is_text_file(name: str) -> bool:
    """Whether Pelton reads this file of a repository beside the weights and their index."""
    return name in _TEXT_FILES or name.startswith(MORE_TEMPLATES + "/")


def check_has_weights(place: object, names: Collection[str]) -> None:
    """Raise ValueError, which says what is there instead, unless files of these names hold a model's weights."""
    if _ADAPTER in names:
        raise ValueError(
            f"{place} holds an adapter ({_ADAPTER}), not a model; merge it into its base model first "
            "(peft: model.merge_and_unload()) and save that"
        )
    if SINGLE in names or INDEX in names:
        return
    if pickles := sorted(name for name in names if name.endswith(PICKLES)):
        raise ValueError(f"{place} has no safetensors, only {pickles[0]}: {PICKLE}")
    if ggufs := sorted(name for name in names if name.endswith(".gguf")):
        raise ValueError(f"{place} has no safetensors; give the GGUF file itself, such as {place}/{ggufs[0]}")
    others = sorted(name for name in names if "/" not in name)
    raise ValueError(f"{place} has no {SINGLE} and no {INDEX}, only {listed(others) or 'nothing'}")


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, a plain name. Raises ValueError that names the index and the entry."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} has no weight_map")
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(
                f"{index} names {shown(name)} in weight_map, which is not a safetensors file of the folder"
            )
        try:
            check_name(tensor)
            check_name(name)
        except ValueError as error:
            raise ValueError(f"{index} is not usable: {error}") from None
    return weight_map


def shards(place: object, weight_map: dict[str, str], names: Collection[str]) -> list[str]:
    """The files that a weight map names. Raises ValueError if one of them is missing, or one of the series left out."""
    wanted = set(weight_map.values())
    if missing := sorted(wanted.difference(names)):
        raise ValueError(f"{place} lacks {listed(missing)}, which its index names")
    series = {match.groups() for name in wanted if (match := _SHARD.fullmatch(name))}
    left_out = sorted(
        name for name in names if name not in wanted and (match := _SHARD.fullmatch(name)) and match.groups() in series
    )
    if left_out:
        raise ValueError(f"{place} has {listed(left_out)}, which its index does not name")
    return sorted(wanted)
