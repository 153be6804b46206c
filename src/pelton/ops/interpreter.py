"""Runs a program launch by launch over the numpy references."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from pelton.ops.arrays import AnyArray
from pelton.ops.dims import Dim, concrete
from pelton.ops.plan import ALIGNMENT, num_bytes, plan_buffers
from pelton.ops.program import Program, Value


class Interpreter:
    """A program with its arena, for sizes up to `max_sizes`.

    The arena's pages are touched only as far as the sizes of actual runs need them. Views into it are kept
    for the sizes of the last run, so that steps of equal sizes bind nothing anew.
    """

    def __init__(self, program: Program, max_sizes: Mapping[Dim, int], check_finite: bool = False) -> None:
        self.program = program
        self.check_finite = check_finite
        """Raise FloatingPointError where a value first becomes infinite or NaN; for debugging, slow."""
        self._dims = program.dims
        self._max_sizes = {dim: max_sizes[dim] for dim in self._dims}
        self._plan = plan_buffers(program, self._max_sizes)
        memory = np.empty(self._plan.arena_bytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        self._arena = memory[start : start + self._plan.arena_bytes]
        self._sizes: tuple[int, ...] | None = None
        self._inputs: dict[str, AnyArray] = {}
        self._outputs: dict[str, AnyArray] = {}
        self._calls: list[Callable[[], None]] = []
        self._launch_outputs: list[list[AnyArray]] = []

    def run(self, sizes: Mapping[Dim, int], inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """One step. The arrays returned are views of the arena, valid until the next run.

        `sizes` may name dimensions that this program does not have: the step header serves all programs.
        Raises ValueError for sizes or inputs that do not fit.
        """
        step = tuple(map(sizes.__getitem__, self._dims))
        if step != self._sizes:
            self._bind(step)
        self._copy_inputs(inputs)
        index = 0
        try:
            # Whatever the caller has set; check_finite says more than a warning.
            warn: Literal["ignore", "warn"] = "ignore" if self.check_finite else "warn"
            with np.errstate(divide=warn, over=warn, under="ignore", invalid=warn):
                for index, call in enumerate(self._calls):
                    call()
                    if self.check_finite:
                        self._check_outputs(index)
        except Exception as error:
            error.add_note(f"in {self.program.name}, launch {index}: {self.program.launches[index]}")
            raise
        return dict(self._outputs)

    def _bind(self, step: tuple[int, ...]) -> None:
        sizes = dict(zip(self._dims, step, strict=True))
        for dim, size in sizes.items():
            if not 0 <= size <= self._max_sizes[dim]:
                raise ValueError(
                    f"{self.program.name}: {dim} = {size} is not within 0 and {self._max_sizes[dim]}, "
                    "for which the arena was planned"
                )
        self._sizes = None  # an interrupt from here on must not leave views of mixed sizes in use
        arrays = {value.id: self._view(value, sizes) for value in self.program.values()}
        self._calls, self._launch_outputs = [], []
        for launch in self.program.launches:
            outputs = [arrays[value.id] for value in launch.outputs]
            arguments = [arrays[arg.id] if isinstance(arg, Value) else arg for arg in launch.arguments]
            self._calls.append(partial(launch.operator.reference, *arguments, *outputs))
            self._launch_outputs.append(outputs)
        self._inputs = {name: arrays[value.id] for name, value in self.program.inputs.items()}
        self._outputs = {name: arrays[value.id] for name, value in self.program.outputs.items()}
        self._sizes = step

    def _view(self, value: Value, sizes: Mapping[Dim, int]) -> AnyArray:
        start = self._plan.offsets[self._plan.slot_of[value.id]]
        flat = self._arena[start : start + num_bytes(value, sizes)]
        return flat.view(value.dtype).reshape(concrete(value.shape, sizes))

    def _copy_inputs(self, inputs: Mapping[str, AnyArray]) -> None:
        if inputs.keys() != self._inputs.keys():
            raise ValueError(f"{self.program.name} takes {sorted(self._inputs)}, got {sorted(inputs)}")
        for name, target in self._inputs.items():
            source = inputs[name]
            if source.shape != target.shape or source.dtype != target.dtype:
                raise ValueError(
                    f"{self.program.name}: input {name} must be {target.dtype} {list(target.shape)}, "
                    f"got {source.dtype} {list(source.shape)}"
                )
            target[...] = source

    def _check_outputs(self, index: int) -> None:
        values = self.program.launches[index].outputs
        for value, array in zip(values, self._launch_outputs[index], strict=True):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                where = np.argwhere(~np.isfinite(array))[0].tolist()
                raise FloatingPointError(f"{value} is {array[tuple(where)]} at {where}, first of all values")
