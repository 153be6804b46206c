"""What an operator is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, NamedTuple, Protocol

import numpy as np

from pelton.ops.dims import Shape


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
    generate: Callable[..., tuple[Any, ...]]
    """Random arguments, from (numpy generator, sizes of the named dimensions)."""
    tolerances: Mapping[str, Tolerance]
    """Per weight and cache format."""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments and of the outputs, in order."""
        return tuple(signature(self.reference).parameters)

    def __str__(self) -> str:
        return self.name
