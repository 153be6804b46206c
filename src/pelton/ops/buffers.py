"""Memory for the values of a program, and what its runs check."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod

import numpy as np

from pelton.ops.arrays import AnyArray
from pelton.ops.backend import Tile
from pelton.ops.dims import Dim, concrete
from pelton.ops.plan import ALIGNMENT, plan_buffers
from pelton.ops.program import Launch, Program, Value


class Buffers:
    """An arena for the values of a program that runs make.

    Its pages are touched only as far as the sizes of actual runs need them.
    """

    def __init__(self, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None) -> None:
        self.program = program
        self.dims = program.dims
        self._max_sizes = {dim: max_sizes[dim] for dim in self.dims}
        self._tile = tile
        self._plan = plan_buffers(program, self._max_sizes, tile)
        memory = np.empty(self._plan.arena_bytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        self._arena = memory[start : start + self._plan.arena_bytes]
        self._address: int = self._arena.ctypes.data
        self._inputs = [
            (name, value.dtype, *self._rows(value), value.shape[1:]) for name, value in program.inputs.items()
        ]
        # Of the last run, and often of the next: sizes, what it was given, where that lies, what it left.
        self.last_sizes: list[int] | None = None
        """Of `dims`, as of the last `addresses`: the same list while they do not change."""
        self._last_arrays: list[AnyArray | None] = [None] * len(self._inputs)
        self._last_addresses = [0] * len(self._inputs)
        self._last_outputs: dict[str, AnyArray] = {}
        self._input_ids = {value.id for value in program.inputs.values()}
        self._outputs = {
            name: (self._view(value, self._max_sizes), *self._rows(value)) for name, value in program.outputs.items()
        }
        self._output_names = {value.id: name for name, value in program.outputs.items()}

    def array(self, value: Value, inputs: Mapping[str, AnyArray], sizes: Mapping[Dim, int], start: int) -> AnyArray:
        """A value within a tile of these sizes that begins at row `start`."""
        if value.id in self._input_ids:
            whole = inputs[value.name]
        elif value.id in self._output_names:
            whole = self._outputs[self._output_names[value.id]][0]
        else:
            return self._view(value, sizes)
        shape = concrete(value.shape, sizes)
        first = start if self.is_tiled(value) else 0
        return whole[first : first + shape[0]]

    def is_whole(self, value: Value) -> bool:
        """Whether all rows of the value are in memory, not those of one tile only."""
        return value.id in self._input_ids or value.id in self._output_names

    def address(self, value: Value) -> int:
        """Of a value that is no input."""
        return self._address + self._plan.offsets[self._plan.slot_of[value.id]]

    def _view(self, value: Value, sizes: Mapping[Dim, int]) -> AnyArray:
        start = self._plan.offsets[self._plan.slot_of[value.id]]
        shape = concrete(value.shape, sizes)
        return self._arena[start : start + prod(shape) * value.dtype.itemsize].view(value.dtype).reshape(shape)

    def output(self, name: str, sizes: Mapping[Dim, int]) -> AnyArray:
        """View of an output of a run with these sizes."""
        array, dim, plus = self._outputs[name]
        num_rows = plus if dim is None else sizes[self.dims[dim]] + plus
        view = self._last_outputs.get(name)
        if view is None or len(view) != num_rows:
            view = self._last_outputs[name] = array[:num_rows]
        return view

    def outputs(self, sizes: Mapping[Dim, int]) -> dict[str, AnyArray]:
        """Views of the outputs of a run with these sizes."""
        return {name: self.output(name, sizes) for name in self._outputs}

    def is_tiled(self, value: Value) -> bool:
        """Whether a tile has only some of the value's rows."""
        rows = value.shape[0]
        return self._tile is not None and isinstance(rows, Dim) and rows.base == self._tile[0]

    def tiles(self, sizes: Mapping[Dim, int]) -> Iterator[tuple[int, int]]:
        """Start and size of each tile. One, of size 0, where there is no tile or nothing to compute."""
        if self._tile is None:
            yield 0, 0
            return
        dim, most = self._tile
        total = sizes[dim]
        for start in range(0, max(total, 1), most):
            yield start, min(most, total - start)

    def tile_sizes(self, sizes: Mapping[Dim, int], num_rows: int) -> dict[Dim, int]:
        """The program's sizes within a tile of so many rows."""
        own = {dim: sizes[dim] for dim in self.dims}
        return own if self._tile is None else own | {self._tile[0]: num_rows}

    def _rows(self, value: Value) -> tuple[int | None, int]:
        """How many rows a value has: the index of a dimension, or None, and what is added to its size."""
        rows = value.shape[0]
        return (None, rows) if isinstance(rows, int) else (self.dims.index(rows.base), rows.plus)

    def _check_sizes(self, sizes: Iterable[int]) -> None:
        """Raise ValueError for sizes of `dims` beyond those planned for."""
        for size, (dim, most) in zip(sizes, self._max_sizes.items(), strict=True):
            if not 0 <= size <= most:
                raise ValueError(
                    f"{self.program.name}: {dim} = {size} is not within 0 and {most}, for which the arena was planned"
                )

    def addresses(self, sizes: Mapping[Dim, int], inputs: Mapping[str, AnyArray]) -> list[int]:
        """Where the inputs lie, in their order; valid until the next call. Raises ValueError for sizes or inputs that
        do not fit the program. The arrays are kept until then; nobody may change their shapes.

        Written for speed: after each step, what Python touches has left the processor's caches.
        """
        own_sizes = [sizes[dim] for dim in self.dims]
        if own_sizes != self.last_sizes:
            self._check_sizes(own_sizes)
            self._last_arrays = [None] * len(self._inputs)
            self.last_sizes = own_sizes
        if inputs.keys() != self.program.inputs.keys():
            raise ValueError(f"{self.program.name} takes {sorted(self.program.inputs)}, got {sorted(inputs)}")
        addresses = self._last_addresses
        for index, (name, dtype, dim, plus, columns) in enumerate(self._inputs):
            array = inputs[name]
            if array is self._last_arrays[index]:
                continue
            num_rows = plus if dim is None else own_sizes[dim] + plus
            interface = array.__array_interface__
            if (
                interface["shape"] != (num_rows, *columns)
                or array.dtype != dtype
                or interface["strides"] is not None  # None: in C order
            ):
                raise ValueError(
                    f"{self.program.name}: input {name} must be {dtype} {[num_rows, *columns]} in C order, "
                    f"got {array.dtype} {list(array.shape)}"
                )
            self._last_arrays[index] = array
            addresses[index] = interface["data"][0]
        return addresses


def check_no_nan(launch: Launch, arrays: list[AnyArray]) -> None:
    """Raise FloatingPointError if an output of the launch has a NaN."""
    for value, array in zip(launch.outputs, arrays, strict=True):
        if value.dtype.kind in "fV" and np.isnan(array).any():
            where = np.argwhere(np.isnan(array))[0].tolist()
            raise FloatingPointError(f"{value} is NaN at {where}, first of all values")
