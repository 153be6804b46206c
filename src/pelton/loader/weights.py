"""Loading a checkpoint's tensors into a model's parameters."""

import logging
import re
import time
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Protocol

import msgspec
from tqdm import tqdm

from pelton.config import DecoderConfig
from pelton.loader.checkpoint import Checkpoint
from pelton.ops.arrays import Float32

logger = logging.getLogger(__name__)

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")
_MAX_LISTED = 8


class Parameter(Protocol):
    """What the loader needs of a model's parameter."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def load(self, array: Float32) -> None: ...


class _Map(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of weight_names/; the inner keys are checkpoint formats."""

    names: dict[str, dict[str, str]]
    interleaved: dict[str, dict[str, str]] = {}
    ignored: dict[str, list[str]] = {}
    ignored_if_tied: dict[str, list[str]] = {}


class WeightNames:
    """How one checkpoint format names and stores the parameters of one architecture."""

    def __init__(self, config: DecoderConfig, checkpoint_format: str) -> None:
        weight_map = _read_map(config.architecture)
        self._config = config
        self._names = {pattern: names[checkpoint_format] for pattern, names in weight_map.names.items()}
        self._interleaved = weight_map.interleaved.get(checkpoint_format, {})
        self._ignored = list(weight_map.ignored.get(checkpoint_format, ()))
        if config.tie_word_embeddings:
            self._ignored += weight_map.ignored_if_tied.get(checkpoint_format, ())

    def foreign(self, name: str) -> str:
        """The checkpoint's name of a parameter. Raises KeyError for a parameter that is not in the map."""
        pattern, layer = _split_layer(name)
        return self._names[pattern].replace("{i}", layer)

    def num_interleaved_heads(self, name: str) -> int | None:
        """Heads whose rows are stored interleaved, or None where rows are in order."""
        field = self._interleaved.get(_split_layer(name)[0])
        return None if field is None else int(getattr(self._config, field))

    def is_ignored(self, foreign: str) -> bool:
        return any(fnmatchcase(foreign, pattern) for pattern in self._ignored)


def load_weights(parameters: Mapping[str, Parameter], checkpoint: Checkpoint, *, progress: bool = False) -> None:
    """Fill every parameter from the checkpoint, and use every tensor of it.

    Raises one ValueError that lists what is missing, left over or of another shape, before anything is read.
    """
    started = time.perf_counter()
    names = WeightNames(checkpoint.config, checkpoint.format)
    _check(parameters, checkpoint, names)
    num_bytes = 0
    items = parameters.items()
    for name, parameter in tqdm(items, desc="Loading weights") if progress else items:
        array = checkpoint.read(names.foreign(name))
        num_heads = names.num_interleaved_heads(name)
        if num_heads is not None:
            array = deinterleave(array, num_heads)
        parameter.load(array)
        num_bytes += array.nbytes
    logger.info(
        "Loaded %d tensors, %.0f MB as float32, from %s in %.2f s",
        len(parameters),
        num_bytes / 1e6,
        checkpoint.path,
        time.perf_counter() - started,
    )


def deinterleave(weight: Float32, num_heads: int) -> Float32:
    """Reorder rows, in each head, from (0, half, 1, half + 1, ...) to (0, 1, ..., half, half + 1, ...).

    weight: [num_heads * head_size, E].
    """
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _check(parameters: Mapping[str, Parameter], checkpoint: Checkpoint, names: WeightNames) -> None:
    present = checkpoint.tensor_names()
    wanted = {names.foreign(name): tuple(parameter.shape) for name, parameter in parameters.items()}
    left_over = sorted(name for name in present - set(wanted) if not names.is_ignored(name))
    misshapen = [
        f"{name} is {checkpoint.shape(name)} and should be {shape}"
        for name, shape in wanted.items()
        if name in present and checkpoint.shape(name) != shape
    ]
    found = {
        "missing tensors": [name for name in wanted if name not in present],
        "tensors that the model has no place for": left_over,
        "tensors of the wrong shape": misshapen,
    }
    problems = [f"{title}: {_listed(entries)}" for title, entries in found.items() if entries]
    if problems:
        raise ValueError(f"{checkpoint.path} does not fit the model; {'; '.join(problems)}")


def _listed(entries: list[str]) -> str:
    more = len(entries) - _MAX_LISTED
    return ", ".join(entries[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def _split_layer(name: str) -> tuple[str, str]:
    """`layers.3.mlp.up` -> (`layers.{i}.mlp.up`, `3`)."""
    match = _LAYER.search(name)
    if match is None:
        return name, ""
    return name[: match.start()] + "{i}" + name[match.end() :], match.group()


@cache
def _read_map(architecture: str) -> _Map:
    file = resources.files(__package__) / "weight_names" / f"{architecture}.toml"
    return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Map)
