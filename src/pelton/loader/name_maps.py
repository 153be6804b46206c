"""How checkpoints name and store a model's parameters, by the tables in weight_names/."""

import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from pelton.config import DecoderConfig
from pelton.loader.checkpoint import Checkpoint
from pelton.loader.parameter_tensor import ParameterTensor

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_Format = Literal["gguf", "hf"]


class _Map(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of weight_names/."""

    based_on: str | None = None
    """Another map, which holds where this one says nothing else."""
    names: dict[str, dict[_Format, str]] = {}
    interleaved: dict[_Format, dict[str, str]] = {}
    minus_one: dict[_Format, list[str]] = {}
    ignored: dict[_Format, list[str]] = {}
    copies_if_tied: dict[_Format, dict[str, str]] = {}


class WeightNames:
    """How one checkpoint format names and stores the parameters of one architecture."""

    def __init__(self, config: DecoderConfig, checkpoint_format: _Format) -> None:
        self._config = config
        self._names: dict[str, str] = {}
        self._interleaved: dict[str, str] = {}
        self._minus_one: set[str] = set()
        self._ignored: set[str] = set()
        self.copies: dict[str, str] = {}
        """Tensor that may be there, and must then equal a parameter's -> that parameter."""
        for weight_map in _read_maps(config.architecture):
            self._names |= {
                pattern: names[checkpoint_format]
                for pattern, names in weight_map.names.items()
                if checkpoint_format in names
            }
            self._interleaved |= weight_map.interleaved.get(checkpoint_format, {})
            self._minus_one.update(weight_map.minus_one.get(checkpoint_format, ()))
            self._ignored.update(weight_map.ignored.get(checkpoint_format, ()))
            if config.tie_word_embeddings:
                self.copies |= weight_map.copies_if_tied.get(checkpoint_format, {})

    def foreign(self, name: str) -> str:
        """The checkpoint's name of a parameter. Raises KeyError for a parameter that is not in the map."""
        pattern, layer = _split_layer(name)
        return self._names[pattern].replace("{i}", layer)

    def tensor(self, name: str, checkpoint: Checkpoint) -> ParameterTensor:
        """A parameter as the model wants it. Raises KeyError for one that is not in the map."""
        stored = checkpoint.tensor(self.foreign(name))
        pattern, _ = _split_layer(name)
        field = self._interleaved.get(pattern)
        num_heads = None if field is None else int(getattr(self._config, field))
        return ParameterTensor(stored, num_heads, self.is_minus_one(name))

    def is_minus_one(self, name: str) -> bool:
        """Whether this format stores a parameter minus one."""
        return _split_layer(name)[0] in self._minus_one

    def is_ignored(self, foreign: str) -> bool:
        return foreign in self.copies or any(fnmatchcase(foreign, pattern) for pattern in self._ignored)


def _split_layer(name: str) -> tuple[str, str]:
    """`layers.3.mlp.up` -> (`layers.{i}.mlp.up`, `3`)."""
    match = _LAYER.search(name)
    if match is None:
        return name, ""
    return name[: match.start()] + "{i}" + name[match.end() :], match.group()


@cache
def _read_maps(architecture: str) -> tuple[_Map, ...]:
    """The maps that the architecture's is based on, then its own."""
    file = Path(__file__).with_name("weight_names") / f"{architecture}.toml"
    weight_map = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Map)
    return (*(_read_maps(weight_map.based_on) if weight_map.based_on else ()), weight_map)
