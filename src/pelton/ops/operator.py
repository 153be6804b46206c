"""What an operator is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pelton.ops.arrays import AnyArray
from pelton.ops.dims import Dim, Shape

if TYPE_CHECKING:
    from numpy.random import Generator


class Shaped(Protocol):
    """A value handle while recording, or an array."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> "np.dtype[Any]": ...


class ArraySpec(NamedTuple):
    """Name, shape and dtype of one output of an operator."""

    name: str
    shape: Shape
    dtype: str = "float32"


class Tolerance(NamedTuple):
    """How far an implementation may be from exact arithmetic: `atol + rtol * |exact|`."""

    rtol: float
    atol: float
    reason: str

    @property
    def doubled(self) -> "Tolerance":
        """How far two implementations may be from each other."""
        return Tolerance(2 * self.rtol, 2 * self.atol, f"twice: {self.reason}")


Arguments = tuple[Any, ...]
RowMask = NDArray[np.bool_]
Compare = Callable[[Arguments, Sequence[AnyArray], Sequence[AnyArray], Tolerance], None]


@dataclass(frozen=True, eq=False)
class Operator:
    """One operation of the set that every device implements.

    Arguments are positional everywhere and in one order: arrays (or value handles), weights, attributes.
    """

    name: str
    infer: Callable[..., tuple[ArraySpec, ...]]
    """Outputs for given arguments. Raises ValueError where the arguments do not fit each other."""
    reference: Callable[..., None]
    """The numpy implementation: arguments, then one preallocated array per output."""
    tolerances: Mapping[str, Tolerance]
    """Per weight and cache format; an operator that knows none has `fp32` only."""
    defined: Callable[..., Sequence[RowMask | None]] | None = None
    """From the arguments: which rows of each output are defined; None for all. Other rows may hold anything."""
    compare: Compare | None = None
    """How outputs are compared where tolerances are not all, as for tokens that are drawn; see `check`."""
    is_callback: bool = False
    """Whether it calls into Python: a native implementation runs the reference, in the middle of a program."""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments and of the outputs, in order."""
        return tuple(signature(self.reference).parameters)

    @property
    def formats(self) -> tuple[str, ...]:
        return tuple(self.tolerances)

    def generate(self, rng: "Generator", sizes: Mapping[Dim, int], weight_format: str) -> Arguments:
        """Random arguments for tests: sizes of the named dimensions, one of `formats`."""
        from pelton.ops import generators  # takes numpy's random numbers along

        arguments: Arguments = getattr(generators, self.name)(rng, sizes, weight_format)
        return arguments

    def check(
        self, arguments: Arguments, expected: Sequence[AnyArray], actual: Sequence[AnyArray], tolerance: Tolerance
    ) -> None:
        """Compare outputs in the rows that are defined. Raises AssertionError where `actual` is too far off.

        Expected outputs of exact arithmetic are compared with one of `tolerances`, those of another implementation
        with a doubled one. The arguments are in the references' layouts.
        """
        if self.compare is not None:
            self.compare(arguments, expected, actual, tolerance)
            return
        masks = None if self.defined is None else self.defined(*arguments)
        for index, (right, ours) in enumerate(zip(expected, actual, strict=True)):
            check_close(f"output {index}", right, ours, tolerance, None if masks is None else masks[index])

    def __str__(self) -> str:
        return self.name


def check_close(
    name: str, expected: AnyArray, actual: AnyArray, tolerance: Tolerance, rows: RowMask | None = None
) -> None:
    """Raises AssertionError where the two differ by more than the tolerance; NaN and infinities must be the same."""
    with np.errstate(invalid="ignore"):  # rows that are not defined may hold signalling NaN
        right, ours = np.asarray(expected).astype(np.float64), np.asarray(actual).astype(np.float64)
    if right.shape != ours.shape:
        raise AssertionError(f"{name}: expected shape {right.shape}, got {ours.shape}")
    with np.errstate(invalid="ignore", over="ignore"):
        is_close = np.abs(ours - right) <= tolerance.atol + tolerance.rtol * np.abs(right)
    is_close = np.where(np.isfinite(right), is_close, (ours == right) | (np.isnan(ours) & np.isnan(right)))
    if rows is not None:
        is_close[~rows] = True
    if not is_close.all():
        wrong = np.argwhere(~is_close)
        where = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{name}: {len(wrong)} of {right.size} elements are off, first at {list(where)}: expected {right[where]}, "
            f"got {ours[where]} (rtol {tolerance.rtol:g}, atol {tolerance.atol:g}: {tolerance.reason})"
        )
