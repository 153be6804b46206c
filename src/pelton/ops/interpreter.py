"""The operator set over numpy: programs are run launch by launch over the references."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from pelton.ops.arrays import AnyArray
from pelton.ops.backend import Backend, CompiledProgram, Run, Tile
from pelton.ops.buffers import Buffers, check_no_nan
from pelton.ops.dims import Dim
from pelton.ops.kv_cache import CacheLayout
from pelton.ops.program import Program, Value
from pelton.ops.rows_packer import RowsPacker


class InterpretedProgram:
    """A program with its arena."""

    def __init__(self, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None, check_nan: bool) -> None:
        self.program = program
        self._check_nan = check_nan
        self._buffers = Buffers(program, max_sizes, tile)

    def output(self, name: str, sizes: Mapping[Dim, int]) -> AnyArray:
        return self._buffers.output(name, sizes)

    def outputs(self, sizes: Mapping[Dim, int]) -> dict[str, AnyArray]:
        return self._buffers.outputs(sizes)

    def run(self, sizes: Mapping[Dim, int], inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """One run of this program. -> outputs, valid until the next.

        Raises ValueError for sizes or inputs that do not fit; FloatingPointError for a NaN, if these are looked for.
        """
        self._buffers.addresses(sizes, inputs)
        for start, num_rows in self._buffers.tiles(sizes):
            self._run_tile(inputs, self._buffers.tile_sizes(sizes, num_rows), start)
        return self._buffers.outputs(sizes)

    def _run_tile(self, inputs: Mapping[str, AnyArray], sizes: Mapping[Dim, int], start: int) -> None:
        arrays = {value.id: self._buffers.array(value, inputs, sizes, start) for value in self.program.values()}
        # Whatever the caller has set; looking for NaN says more than a warning.
        warn: Literal["ignore", "warn"] = "ignore" if self._check_nan else "warn"
        with np.errstate(divide=warn, over=warn, under="ignore", invalid=warn):
            for index, launch in enumerate(self.program.launches):
                arguments = [arrays[arg.id] if isinstance(arg, Value) else arg for arg in launch.arguments]
                outputs = [arrays[value.id] for value in launch.outputs]
                try:
                    if self._check_nan:
                        for output in outputs:
                            output.fill(0)  # rows that stay undefined are not looked at
                    launch.operator.reference(*arguments, *outputs)
                    if self._check_nan:
                        check_no_nan(launch, outputs)
                except Exception as error:
                    error.add_note(f"in {self.program.name}, launch {index}: {launch}")
                    raise


class NumpyBackend(Backend):
    """The references themselves: for comparison, and where there are no native kernels."""

    name = "numpy"
    is_native = False
    cache_layout: CacheLayout = "plain"

    def __init__(self, *, check_nan: bool = False) -> None:
        self._check_nan = check_nan

    def linear_packer(self, num_rows: int, in_features: int, *, weight_format: str, gated: bool = False) -> RowsPacker:
        return RowsPacker(num_rows, in_features, weight_format, gated=gated)

    def zeros(self, num_bytes: int) -> AnyArray:
        return np.zeros(num_bytes, np.uint8)

    def compile(self, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None = None) -> InterpretedProgram:
        return InterpretedProgram(program, max_sizes, tile, self._check_nan)

    def run(self, runs: Sequence[Run]) -> None:
        for run in runs:
            _interpreted(run.program).run(run.sizes, run.inputs)

    def close(self) -> None:
        pass


def _interpreted(program: CompiledProgram) -> InterpretedProgram:
    assert isinstance(program, InterpretedProgram), "a backend runs its own programs"
    return program
