"""The operator set over native kernels: a step is one native call."""

import os
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from pelton.ops.arrays import AnyArray, Float32
from pelton.ops.backend import Backend, CompiledProgram, Run, Tile
from pelton.ops.buffers import check_no_nan
from pelton.ops.cpu.library import Library, PanelPlace, RunSpec
from pelton.ops.cpu.memory import WeightMemory, map_huge
from pelton.ops.cpu.program import NativeProgram, Segment, dtype_number, run_array
from pelton.ops.dims import Dim
from pelton.ops.kv_cache import CacheLayout
from pelton.ops.packed_linear import FORMAT_DTYPES, PackedLinear, check_parts
from pelton.ops.program import Program

PANEL = 48
"""Columns of a panel of a packed weight (native/ops/pack.h)."""
_K_STEP: dict[str, int] = {"fp32": 1, "bf16": 2}
"""Consecutive k that lie together for each column."""
_LARGE = 32 * 2**20
"""From so many bytes on, zeroed memory lies on huge pages: attention took 25.8 instead of 28.4 ms of a large decode
step of SmolLM2. Its 30 arrays of 143 MB, of which a short prompt touches the beginnings, then take 64 MB more."""


class CPUBackend(Backend):
    """The kernels of one instruction-set level on a pool of threads.

    With `eager`, every launch is a native call of its own; the results are the same. Then `check_nan` can look at what
    each launch gives.
    """

    is_native = True
    cache_layout: CacheLayout = "tiled"

    def __init__(self, library: Library, num_threads: int, *, eager: bool = False, check_nan: bool = False) -> None:
        """Raises OSError if so many threads cannot be started."""
        self.name = f"cpu {library.level}, {num_threads} thread{'s' if num_threads > 1 else ''}"
        self._library = library
        self._is_eager = eager or check_nan
        self._check_nan = check_nan
        self._memory = WeightMemory()
        self._replay = library.create_replay(num_threads)
        self._process_id = os.getpid()
        self._close = weakref.finalize(self, _end_threads, library, self._replay, self._process_id)
        self._close.atexit = False  # another thread may still be running something

    def pack_linear(
        self, parts: Sequence[Float32], bias: Float32 | None, *, weight_format: str, gated: bool = False
    ) -> PackedLinear:
        replay = self._open()
        num_rows, k = check_parts(parts, bias, gated=gated)
        out_features = num_rows // 2 if gated else num_rows
        step, dtype = _K_STEP[weight_format], np.dtype(FORMAT_DTYPES[weight_format])
        num_panels = -(-out_features // PANEL) * (2 if gated else 1)
        array = self._memory.take(num_panels * -(-k // step) * step * PANEL * dtype.itemsize).view(dtype)
        stacked = 0
        for part in parts:
            rows = np.require(part, np.float32, ["C", "A"])
            boundary = max(out_features - stacked, 0)  # of a gated weight: up begins here
            for half, piece in enumerate((rows[:boundary], rows[boundary:])):
                column = stacked - half * out_features
                place = PanelPlace(array.ctypes.data, dtype_number(array), column, 2 if gated else 1, half)
                self._library.pack(replay, piece.ctypes.data, piece.shape, place)
                stacked += len(piece)
        packed_bias = None if bias is None else np.require(bias, np.float32, ["C", "A"])
        return PackedLinear(weight_format, "panels", array, (out_features, k), packed_bias, gated)

    def zeros(self, num_bytes: int) -> AnyArray:
        if num_bytes < _LARGE:
            return np.zeros(num_bytes, np.uint8)
        return map_huge(num_bytes)

    def compile(self, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None = None) -> NativeProgram:
        return NativeProgram(self._library, program, max_sizes, tile)

    def run(self, runs: Sequence[Run]) -> None:
        """One native call, but for Python callbacks, before and after which there is a call.

        Raises RuntimeError if a kernel refuses its arguments, or the backend is busy with another call.
        """
        replay = self._open()
        specs: list[RunSpec] = []
        for run in runs:
            program = _native(run.program)
            for segment in program.segments(run.sizes, run.inputs, launch_by_launch=self._is_eager):
                if self._is_eager:
                    self._run_launch(replay, program, segment, run)
                elif segment.spec is not None:
                    specs.append(segment.spec)
                else:
                    self._flush(replay, specs)
                    program.call_back(segment, run.inputs)
        self._flush(replay, specs)

    def _open(self) -> int:
        """Handle of the threads and what they run."""
        assert self._close.alive, "the backend is closed"
        if os.getpid() != self._process_id:
            raise RuntimeError("this process was forked from the engine's, and lacks its threads; make a new engine")
        return self._replay

    def _flush(self, replay: int, specs: list[RunSpec]) -> None:
        if specs:
            self._library.run(replay, run_array(specs))
            specs.clear()

    def _run_launch(self, replay: int, program: NativeProgram, segment: Segment, run: Run) -> None:
        try:
            outputs = program.launch_outputs(segment) if self._check_nan else []
            for output in outputs:
                output.fill(0)  # rows that stay undefined are not looked at
            if segment.spec is None:
                program.call_back(segment, run.inputs)
            else:
                self._library.run(replay, run_array([segment.spec]))
            if self._check_nan:
                check_no_nan(program.program.launches[segment.first], outputs)
        except Exception as error:
            launch = program.program.launches[segment.first]
            error.add_note(f"in {program.program.name}, launch {segment.first}: {launch}")
            raise

    def barrier_ns(self) -> float:
        """How long the threads take to wait for each other: a tag for figures, for it tells how far apart their cores
        are, and virtual machines move them."""
        return self._library.barrier_ns(self._open())

    def close(self) -> None:
        if os.getpid() != self._process_id:
            self._close()
        elif self._close.alive:
            self._library.check_idle(self._replay)
            self._close()


def _end_threads(library: Library, replay: int, process_id: int) -> None:
    """A forked process has the pool's memory, but not its threads: it can neither end them nor wait for them."""
    if os.getpid() == process_id:
        library.destroy_replay(replay)


def _native(program: CompiledProgram) -> NativeProgram:
    assert isinstance(program, NativeProgram), "a backend runs its own programs"
    return program
