"""Loading a checkpoint's tensors into a model's parameters."""

import logging
import math
import re
import time
import tomllib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Literal, Protocol

import msgspec
import numpy as np
from tqdm import tqdm

from pelton.config import DecoderConfig
from pelton.error_text import listed
from pelton.loader.checkpoint import Checkpoint
from pelton.ops.arrays import Float32

logger = logging.getLogger(__name__)

_NUM_READERS = 2
"""Threads that read and dequantize beside the one that packs."""
_MAX_BYTES_AHEAD = 256 << 20
"""Read and not yet used; a tensor that is larger comes alone."""

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


class Parameter(Protocol):
    """What the loader needs of a model's parameter."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str:
        """How the model keeps it."""

    @property
    def num_bytes(self) -> int:
        """What that takes."""

    def load(self, array: Float32) -> None: ...


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

    def restore(self, name: str, array: Float32) -> Float32:
        """A parameter's tensor as the model wants it, from what this format stores."""
        pattern, _ = _split_layer(name)
        if (field := self._interleaved.get(pattern)) is not None:
            array = deinterleave(array, int(getattr(self._config, field)))
        if pattern in self._minus_one:
            array = array + np.float32(1.0)
        return array

    def is_ignored(self, foreign: str) -> bool:
        return foreign in self.copies or any(fnmatchcase(foreign, pattern) for pattern in self._ignored)


def load_weights(parameters: Mapping[str, Parameter], checkpoint: Checkpoint, *, progress: bool = False) -> None:
    """Fill every parameter from the checkpoint, and use every tensor of it.

    Raises one ValueError that lists what is missing, left over or of another shape, before anything is loaded, and
    one for a tensor that cannot be read or used.
    """
    started = time.perf_counter()
    names = WeightNames(checkpoint.config, checkpoint.format)
    _check(parameters, checkpoint, names)
    _check_copies(checkpoint, names)
    arrays = _read_ahead(parameters.values(), checkpoint, names)
    with closing(arrays), tqdm(total=len(parameters), desc="Loading weights", disable=not progress) as bar:
        for parameter, array in zip(parameters.values(), arrays, strict=True):
            with _named(checkpoint, names.foreign(parameter.name)):
                parameter.load(array)
            bar.update()
    logger.info(
        "Loaded %s: %s, %.4g M parameters, %.4g MB on disk, %.4g MB as %s, in %.2f s",
        checkpoint.name,
        checkpoint.config.architecture,
        sum(math.prod(parameter.shape) for parameter in parameters.values()) / 1e6,
        checkpoint.num_bytes / 1e6,
        sum(parameter.num_bytes for parameter in parameters.values()) / 1e6,
        " and ".join(sorted({parameter.format for parameter in parameters.values()})),
        time.perf_counter() - started,
    )


def _read_ahead(
    parameters: Iterable[Parameter], checkpoint: Checkpoint, names: WeightNames
) -> Generator[Float32, None, None]:
    """The parameters' arrays, in order. While one is used, other threads read the next few."""

    def read(name: str) -> Float32:
        foreign = names.foreign(name)
        array = names.restore(name, checkpoint.read(foreign))
        with _named(checkpoint, foreign):
            _check_finite(array)
        return array

    pending: deque[Future[Float32]] = deque()
    sizes: deque[int] = deque()  # in bytes, of those pending
    pool = ThreadPoolExecutor(_NUM_READERS, "pelton-loader")
    try:
        for parameter in parameters:
            size = 4 * math.prod(parameter.shape)
            # As long as there is room for this one, the first of those before it need not be waited for.
            while pending and (len(pending) > _NUM_READERS or sum(sizes) + size > _MAX_BYTES_AHEAD):
                yield pending.popleft().result()
                sizes.popleft()
            pending.append(pool.submit(read, parameter.name))
            sizes.append(size)
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _named(checkpoint: Checkpoint, tensor: str) -> Iterator[None]:
    """Say in a ValueError which tensor it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: tensor {tensor} is not usable: {error}") from None


def deinterleave(weight: Float32, num_heads: int) -> Float32:
    """Reorder rows, in each head, from (0, half, 1, half + 1, ...) to (0, 1, ..., half, half + 1, ...).

    weight: [num_heads * head_size, E], or a bias [num_heads * head_size].
    """
    pairs = weight.reshape(num_heads, len(weight) // num_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


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
    problems = [f"{title}: {listed(entries)}" for title, entries in found.items() if entries]
    if problems:
        raise ValueError(f"{checkpoint.path} does not fit the model; {'; '.join(problems)}")


def _check_finite(array: Float32) -> None:
    """A sum is not finite if an element is not; it is cheaper than to look at each."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    if not np.isfinite(total) and not np.isfinite(array).all():
        raise ValueError("it has an element that is not finite")


def _check_copies(checkpoint: Checkpoint, names: WeightNames) -> None:
    present = checkpoint.tensor_names()
    for copy, parameter in names.copies.items():
        if copy not in present:
            continue
        original = names.foreign(parameter)
        if not np.array_equal(checkpoint.read(copy), checkpoint.read(original)):
            raise ValueError(
                f"{checkpoint.path} says tie_word_embeddings, but {copy} differs from {original}; "
                "to use both, set tie_word_embeddings to false in its config.json"
            )


def _split_layer(name: str) -> tuple[str, str]:
    """`layers.3.mlp.up` -> (`layers.{i}.mlp.up`, `3`)."""
    match = _LAYER.search(name)
    if match is None:
        return name, ""
    return name[: match.start()] + "{i}" + name[match.end() :], match.group()


@cache
def _read_maps(architecture: str) -> tuple[_Map, ...]:
    """The maps that the architecture's is based on, then its own."""
    file = resources.files(__package__) / "weight_names" / f"{architecture}.toml"
    weight_map = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _Map)
    return (*(_read_maps(weight_map.based_on) if weight_map.based_on else ()), weight_map)
