"""Loading a checkpoint's tensors into a model's parameters."""

import logging
import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np

from pelton.error_text import in_tensor, listed
from pelton.loader.checkpoint import Checkpoint
from pelton.loader.name_maps import WeightNames
from pelton.loader.parameter_tensor import ParameterTensor
from pelton.ops.arrays import Float32
from pelton.ops.packed_linear import Int4Rows, Rows

logger = logging.getLogger(__name__)

_NUM_READERS = 2
"""Threads that read and dequantize beside the one that packs."""
_PIECE_ELEMENTS = 2**19
"""Of a matrix that are read at a time: 2 MiB of float32."""
_ROW_STEP = 48
"""Rows of a piece are a multiple of this, if there are so many: native kernels pack as many into a panel."""
_BAR_DELAY = 2.0
"""Seconds after which loading shows a bar."""


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

    def load(self, rows: Rows) -> None:
        """Take all of a vector, or the next rows of a matrix, in four bits only if the format is `int4`."""


class _Piece(NamedTuple):
    """Some of a parameter, read ahead."""

    parameter: Parameter
    is_last: bool
    rows: Future[Rows]


def load_weights(parameters: Mapping[str, Parameter], checkpoint: Checkpoint, *, progress: bool = False) -> None:
    """Fill every parameter from the checkpoint, in pieces, and use every tensor of it.

    Raises one ValueError that lists what is missing, left over or of another shape, before anything is loaded, and
    one for a tensor that cannot be read or used. With `progress`, a bar is shown once this has taken a while.
    """
    started = time.perf_counter()
    names = WeightNames(checkpoint.config, checkpoint.format)
    _check(parameters, checkpoint, names)
    _check_copies(checkpoint, names)
    pieces = _read_ahead(parameters.values(), checkpoint, names)
    with closing(pieces), _bar(len(parameters), progress) as bar:
        for piece in pieces:
            rows = piece.rows.result()
            with in_tensor(checkpoint.path, names.foreign(piece.parameter.name)):
                piece.parameter.load(rows)
            if piece.is_last and bar is not None:
                bar.update()
    logger.info(
        "Loaded %s: %s, %.4g M parameters, %.4g MB on disk, %.4g MB as %s, in %.2f s",
        checkpoint.name,
        checkpoint.config.architecture,
        sum(math.prod(parameter.shape) for parameter in parameters.values()) / 1e6,
        checkpoint.num_bytes / 1e6,
        sum(parameter.num_bytes for parameter in parameters.values()) / 1e6,
        " and ".join(formats_by_size(parameters.values())),
        time.perf_counter() - started,
    )


def formats_by_size(parameters: Iterable[Parameter]) -> list[str]:
    """Of all parameters, the one that takes the most memory first."""
    sizes: dict[str, int] = {}
    for parameter in parameters:
        sizes[parameter.format] = sizes.get(parameter.format, 0) + parameter.num_bytes
    return sorted(sizes, key=lambda weight_format: -sizes[weight_format])


def _bar(num_parameters: int, progress: bool) -> AbstractContextManager[Any]:
    """A bar to be updated, or None."""
    if not progress:
        return nullcontext()
    from tqdm import tqdm

    bar: AbstractContextManager[Any] = tqdm(total=num_parameters, desc="Loading weights", delay=_BAR_DELAY)
    return bar


def _read_ahead(
    parameters: Iterable[Parameter], checkpoint: Checkpoint, names: WeightNames
) -> Generator[_Piece, None, None]:
    """The parameters' pieces, in order. While one is used, other threads read the next few."""
    pending: deque[_Piece] = deque()
    pool = ThreadPoolExecutor(_NUM_READERS, "pelton-loader")
    try:
        for parameter in parameters:
            tensor = names.tensor(parameter.name, checkpoint)
            for start, stop in _cuts(parameter.shape):
                if len(pending) > _NUM_READERS:
                    yield pending.popleft()
                rows = pool.submit(_read, checkpoint, tensor, start, stop, parameter.format)
                pending.append(_Piece(parameter, stop == parameter.shape[0], rows))
        while pending:
            yield pending.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


def _cuts(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First row and end of each piece; a vector is one."""
    num_rows = shape[0]
    step = num_rows
    if len(shape) == 2:
        step = max(_PIECE_ELEMENTS // shape[1], 1)
        step = max(step // _ROW_STEP * _ROW_STEP, min(step, _ROW_STEP))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def _read(checkpoint: Checkpoint, tensor: ParameterTensor, start: int, stop: int, weight_format: str) -> Rows:
    rows = tensor.read_rows(start, stop, weight_format) if len(tensor.shape) == 2 else tensor.read()
    if not isinstance(rows, Int4Rows):  # whose scales are checked where they are read
        with in_tensor(checkpoint.path, tensor.stored.name):
            _check_finite(rows)
    return rows


def _check(parameters: Mapping[str, Parameter], checkpoint: Checkpoint, names: WeightNames) -> None:
    present = checkpoint.tensor_names()
    wanted = {names.foreign(name): tuple(parameter.shape) for name, parameter in parameters.items()}
    left_over = sorted(name for name in present - set(wanted) if not names.is_ignored(name))
    shapes = {name: checkpoint.tensor(name).shape for name in wanted if name in present}
    misshapen = [
        f"{name} is {shape} and should be {wanted[name]}" for name, shape in shapes.items() if shape != wanted[name]
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
        if not _are_equal(checkpoint, copy, original):
            raise ValueError(
                f"{checkpoint.path} says tie_word_embeddings, but {copy} differs from {original}; "
                "to use both, set tie_word_embeddings to false in its config.json"
            )


def _are_equal(checkpoint: Checkpoint, *names: str) -> bool:
    """Whether two matrices are."""
    one, other = (checkpoint.tensor(name) for name in names)
    return one.shape == other.shape and all(
        np.array_equal(one.read(start, stop), other.read(start, stop)) for start, stop in _cuts(one.shape)
    )
