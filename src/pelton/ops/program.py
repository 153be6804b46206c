"""A program: what a model computes in one step, as a list of operator launches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.ops.arrays import AnyArray
from pelton.ops.dims import Dim, Shape, shape_str
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.logits_hook import LogitsHook
from pelton.ops.operator import Operator
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.qk_norm import QKNorm


@dataclass(frozen=True, slots=True)
class Value:
    """A handle of an array that exists while a program runs."""

    id: int
    name: str
    shape: Shape
    dtype: "np.dtype[Any]"

    def __str__(self) -> str:
        dtype = "" if self.dtype == np.float32 else f" {self.dtype}"
        return f"%{self.id} {self.name}{shape_str(self.shape)}{dtype}"


Argument = Value | AnyArray | PackedLinear | KVCacheLayer | QKNorm | LogitsHook | float | str | None
"""What a launch is given: values, weights (arrays or packed), KV caches, callbacks, attributes."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One operator, its arguments in the operator's order, and the values it makes."""

    operator: Operator
    arguments: tuple[Argument, ...]
    outputs: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The arguments that are values."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Value))

    def __str__(self) -> str:
        named = zip(self.operator.parameters, self.arguments, strict=False)
        arguments = ", ".join(_argument_str(name, value) for name, value in named if value is not None)
        return f"{', '.join(map(str, self.outputs))} = {self.operator}({arguments})"


@dataclass(frozen=True)
class Program:
    """Launches in order. Print it to read it."""

    name: str
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    launches: tuple[Launch, ...]

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The named dimensions whose sizes a run needs."""
        named = (n.base for value in self.values() for n in value.shape if isinstance(n, Dim))
        return tuple(dict.fromkeys(named))

    def values(self) -> Iterator[Value]:
        """Every value once: the inputs, then the outputs of each launch."""
        yield from self.inputs.values()
        for launch in self.launches:
            yield from launch.outputs

    def __str__(self) -> str:
        lines = [f"program {self.name}({', '.join(map(str, self.inputs.values()))})"]
        lines += [f"  {launch}" for launch in self.launches]
        outputs = ", ".join(f"{name}=%{value.id}" for name, value in self.outputs.items())
        return "\n".join([*lines, f"  return {outputs}"])


def _argument_str(name: str, argument: Argument) -> str:
    if isinstance(argument, Value):
        return f"%{argument.id}"
    if isinstance(argument, np.ndarray):
        return f"{name}{shape_str(argument.shape)}"
    if isinstance(argument, PackedLinear | KVCacheLayer | QKNorm):
        return f"{name}{argument}"
    if argument is None or isinstance(argument, int | float | str):
        return f"{name}={argument}"
    return f"{name}={type(argument).__name__}"
