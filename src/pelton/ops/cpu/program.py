"""A program in the form that the native replayer runs."""

import ctypes
import weakref
from collections.abc import Iterator, Mapping
from ctypes import c_int64
from dataclasses import dataclass
from math import prod

import numpy as np

from pelton.ops.arrays import AnyArray
from pelton.ops.backend import Tile
from pelton.ops.buffers import Buffers
from pelton.ops.cpu.library import (
    ABSENT,
    DTYPE_NUMBERS,
    FORMAT_NUMBERS,
    INPUT,
    MEMORY,
    NUMBER,
    ArgSpec,
    LaunchSpec,
    Library,
    RunSpec,
)
from pelton.ops.dims import Dim
from pelton.ops.kv_cache import KVCacheLayer
from pelton.ops.packed_linear import PackedLinear
from pelton.ops.program import Argument, Launch, Program, Value
from pelton.ops.qk_norm import QKNorm

_NAMES = DTYPE_NUMBERS | {"silu": 0, "gelu_tanh": 1}
"""Attributes that are strings, as kernels see them."""
_ABSENT_WIDTHS = {"norms": 3}
"""How many native arguments stand for a None; one for all others."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Launches [first, last) of a tile: native, or one that Python runs if there is no `size_array`."""

    first: int
    last: int
    size_array: "ctypes.Array[c_int64] | None"
    sizes: Mapping[Dim, int]
    tile_start: int


class NativeProgram:
    """A program with its arena, and its launches in native form."""

    def __init__(
        self, library: Library, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None, *, eager: bool
    ) -> None:
        """Eager: every launch is a segment of its own."""
        self.program = program
        self._is_eager = eager
        self._buffers = Buffers(program, max_sizes, tile)
        self._dims = self._buffers.dims
        self._input_index = {value.id: index for index, value in enumerate(program.inputs.values())}
        self._constants: list[AnyArray] = []
        launches = (LaunchSpec * len(program.launches))()
        for spec, launch in zip(launches, program.launches, strict=True):
            if not launch.operator.is_callback:
                args = [arg for pair in _named_arguments(launch) for arg in self._flatten(*pair)]
                spec.kernel = launch.operator.name.encode()
                spec.num_args = len(args)
                spec.args = (ArgSpec * len(args))(*args)
        # What the last run was cut into, and for which sizes: often the same again.
        self._last_segments: list[Segment] = []
        self._sizes_of_segments: list[int] | None = None
        self._callbacks = [i for i, launch in enumerate(program.launches) if launch.operator.is_callback]
        self._handle = library.create_program(launches)
        # Not at exit: another thread may still be running it.
        weakref.finalize(self, library.destroy_program, self._handle).atexit = False

    def output(self, name: str, sizes: Mapping[Dim, int]) -> AnyArray:
        return self._buffers.output(name, sizes)

    def outputs(self, sizes: Mapping[Dim, int]) -> dict[str, AnyArray]:
        return self._buffers.outputs(sizes)

    def segments(
        self, sizes: Mapping[Dim, int], inputs: Mapping[str, AnyArray]
    ) -> list[tuple[Segment, RunSpec | None]]:
        """What to run, in order: as few segments as callbacks and tiles allow, or one for each launch. Those that
        Python runs have no spec.

        The specs point into `inputs`. Raises ValueError for sizes or inputs that do not fit.
        """
        addresses = self._buffers.addresses(sizes, inputs)
        input_array = (c_int64 * len(addresses))(*addresses)
        if self._buffers.last_sizes is not self._sizes_of_segments:
            self._last_segments = list(self._segments(sizes))
            self._sizes_of_segments = self._buffers.last_sizes
        return [(segment, self._spec(segment, input_array)) for segment in self._last_segments]

    def _spec(self, segment: Segment, input_array: "ctypes.Array[c_int64]") -> RunSpec | None:
        if segment.size_array is None:
            return None
        return RunSpec(self._handle, segment.size_array, input_array, segment.tile_start, segment.first, segment.last)

    def _segments(self, sizes: Mapping[Dim, int]) -> Iterator[Segment]:
        for start, num_rows in self._buffers.tiles(sizes):
            tile_sizes = self._buffers.tile_sizes(sizes, num_rows)
            size_array = (c_int64 * len(self._dims))(*tile_sizes.values())
            for first, last in self._cuts():
                yield Segment(first, last, None if first in self._callbacks else size_array, tile_sizes, start)

    def call_back(self, segment: Segment, inputs: Mapping[str, AnyArray]) -> None:
        """Run a segment that is a Python callback."""
        launch = self.program.launches[segment.first]
        arguments = [
            self._array(argument, segment, inputs) if isinstance(argument, Value) else argument
            for argument in launch.arguments
        ]
        launch.operator.reference(*arguments, *self.launch_outputs(segment))

    def launch_outputs(self, segment: Segment) -> list[AnyArray]:
        """What the first launch of a segment writes."""
        return [self._array(value, segment, {}) for value in self.program.launches[segment.first].outputs]

    def _cuts(self) -> Iterator[tuple[int, int]]:
        num_launches = len(self.program.launches)
        if self._is_eager:
            yield from ((index, index + 1) for index in range(num_launches))
            return
        begin = 0
        for callback in (*self._callbacks, num_launches):
            if begin < callback:
                yield begin, callback
            if callback < num_launches:
                yield callback, callback + 1
            begin = callback + 1

    def _array(self, value: Value, segment: Segment, inputs: Mapping[str, AnyArray]) -> AnyArray:
        return self._buffers.array(value, inputs, segment.sizes, segment.tile_start)

    def _flatten(self, name: str, argument: Argument) -> list[ArgSpec]:
        """The native arguments of a launch's argument."""
        match argument:
            case None:
                return [ArgSpec(kind=ABSENT) for _ in range(_ABSENT_WIDTHS.get(name, 1))]
            case Value():
                return [self._value(argument)]
            case PackedLinear():
                assert argument.layout == "panels", f"{name} is packed for another backend"
                weight = self._memory(argument.array, FORMAT_NUMBERS[argument.format])
                weight.rows, weight.cols = argument.num_rows, argument.in_features
                bias = ArgSpec(kind=ABSENT) if argument.bias is None else self._constant(argument.bias)
                return [weight, bias]
            case KVCacheLayer():
                assert argument.layout == "tiled", f"{argument.name} lies as for another backend"
                numbers = argument.num_kv_heads, argument.block_size, argument.head_size
                return [self._constant(argument.array), *map(_number, numbers)]
            case QKNorm():
                return [self._constant(argument.q), self._constant(argument.k), _number(argument.eps)]
            case np.ndarray():
                return [self._constant(argument)]
            case str():
                return [_number(_NAMES[argument])]
            case int() | float() | np.number():
                return [_number(float(argument))]
            case _:
                raise AssertionError(f"{name}: no kernel takes {argument}")

    def _value(self, value: Value) -> ArgSpec:
        rows, *others = value.shape
        assert all(isinstance(n, int) for n in others), f"{value}: only the first dimension may change"
        cols = prod(n for n in others if isinstance(n, int))
        spec = ArgSpec(dtype=DTYPE_NUMBERS[value.dtype.name], cols=cols, row_bytes=cols * value.dtype.itemsize)
        spec.dim, spec.rows = (-1, rows) if isinstance(rows, int) else (self._dims.index(rows.base), rows.plus)
        is_input = value.id in self._input_index
        spec.kind = INPUT if is_input else MEMORY
        spec.value = self._input_index[value.id] if is_input else self._buffers.address(value)
        spec.is_tiled = self._buffers.is_whole(value) and self._buffers.is_tiled(value)
        return spec

    def _constant(self, array: AnyArray) -> ArgSpec:
        return self._memory(array, DTYPE_NUMBERS[array.dtype.name])

    def _memory(self, array: AnyArray, dtype: int) -> ArgSpec:
        assert array.flags.c_contiguous
        self._constants.append(array)
        rows, cols = len(array), prod(array.shape[1:])
        return ArgSpec(kind=MEMORY, dtype=dtype, dim=-1, rows=rows, cols=cols, value=array.ctypes.data)


def _named_arguments(launch: Launch) -> list[tuple[str, Argument]]:
    arguments: tuple[Argument, ...] = (*launch.arguments, *launch.outputs)
    return list(zip(launch.operator.parameters, arguments, strict=True))


def _number(value: float) -> ArgSpec:
    return ArgSpec(kind=NUMBER, value=int(value), real=value)


def run_array(specs: "list[RunSpec]") -> "ctypes.Array[RunSpec]":
    return (RunSpec * len(specs))(*specs)
