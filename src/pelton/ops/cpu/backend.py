"""The operator set over native kernels: a step is one native call."""

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from threading import RLock

import numpy as np

from pelton.ops.arrays import AnyArray, Float32
from pelton.ops.backend import Backend, CompiledProgram, Run, Tile
from pelton.ops.buffers import check_no_nan
from pelton.ops.cpu.library import BUSY, READ_BLOCK, Library, PanelPlace, RunSpec, SourceRows
from pelton.ops.cpu.memory import HUGE_PAGE, WeightMemory, map_huge
from pelton.ops.cpu.program import NativeProgram, Segment, run_array
from pelton.ops.dims import Dim
from pelton.ops.kv_cache import CacheLayout
from pelton.ops.packed_linear import PackedLinear, Rows
from pelton.ops.program import Program

_LARGE = 32 * 2**20
"""From so many bytes on, zeroed memory lies on huge pages: attention took 25.8 instead of 28.4 ms of a large decode
step of SmolLM2. The first huge page of each of its 30 arrays of 143 MB is left to small ones: a short prompt touches no
more, and to clear 60 MB took 50 of the 90 ms of processor time of a first step."""


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
        self.level = library.level
        self.num_threads = num_threads
        self._library = library
        self._is_eager = eager or check_nan
        self._check_nan = check_nan
        self._memory = WeightMemory()
        self._lock = RLock()
        self._replay = library.create_replay(num_threads)
        self._process_id = os.getpid()
        self._close = weakref.finalize(self, _end_threads, library, self._replay, self._process_id)
        self._close.atexit = False  # another thread may still be running something

    def linear_packer(
        self, num_rows: int, in_features: int, *, weight_format: str, gated: bool = False
    ) -> "PanelPacker":
        num_parts = 2 if gated else 1
        shape = num_rows // num_parts, in_features
        array = self._memory.take(self._library.packed_bytes(weight_format, *shape, num_parts))
        return PanelPacker(self._pack, PackedLinear(weight_format, "panels", array, shape, None, gated))

    def _pack(self, weight_format: str, rows: SourceRows, place: PanelPlace) -> None:
        self._library.pack(self._open(), weight_format, rows, place)

    def zeros(self, num_bytes: int) -> AnyArray:
        if num_bytes < _LARGE:
            return np.zeros(num_bytes, np.uint8)
        return map_huge(num_bytes, num_small=HUGE_PAGE)

    def compile(self, program: Program, max_sizes: Mapping[Dim, int], tile: Tile | None = None) -> NativeProgram:
        return NativeProgram(self._library, program, max_sizes, tile, eager=self._is_eager)

    def run(self, runs: Sequence[Run]) -> None:
        """One native call, but for Python callbacks, before and after which there is a call.

        Raises RuntimeError if a kernel refuses its arguments, or the backend is busy with another call.
        """
        replay = self._open()
        # Callbacks may come back in here, other threads may not.
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(BUSY)
        try:
            self._run(replay, runs)
        finally:
            self._lock.release()

    def _run(self, replay: int, runs: Sequence[Run]) -> None:
        specs: list[RunSpec] = []
        for run in runs:
            program = _native(run.program)
            for segment, spec in program.segments(run.sizes, run.inputs):
                if self._is_eager:
                    self._run_launch(replay, program, segment, spec, run)
                elif spec is not None:
                    specs.append(spec)
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

    def _run_launch(
        self, replay: int, program: NativeProgram, segment: Segment, spec: RunSpec | None, run: Run
    ) -> None:
        try:
            outputs = program.launch_outputs(segment) if self._check_nan else []
            for output in outputs:
                output.fill(0)  # rows that stay undefined are not looked at
            if spec is None:
                program.call_back(segment, run.inputs)
            else:
                self._library.run(replay, run_array([spec]))
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

    def multiply_rate(self, weight_format: str, seconds: float) -> float:
        """Multiplications and additions per second that the threads can do, measured for so long: in the inner products
        of a format, by the instructions of this level, without waiting for memory."""
        return self._library.multiply_rate(self._open(), weight_format, seconds)

    def read_rate(self, num_bytes: int, seconds: float) -> float:
        """Bytes per second that the threads can read, measured for so long: again and again so many bytes, rounded up
        to whole blocks for each thread. Raises MemoryError where there is not so much memory."""
        size = self.num_threads * READ_BLOCK
        memory = map_huge(-(-num_bytes // size) * size)
        return self._library.read_rate(self._open(), memory.ctypes.data, len(memory), seconds)

    def close(self) -> None:
        if os.getpid() != self._process_id:
            self._close()
        elif self._close.alive:
            self._library.check_idle(self._replay)
            self._close()


class PanelPacker:
    """Packs one weight in panels; see `LinearPacker`."""

    def __init__(self, pack: Callable[[str, SourceRows, PanelPlace], None], weight: PackedLinear) -> None:
        self._pack = pack
        self._weight = weight

    def add(self, first_row: int, rows: Rows) -> None:
        """Of a gated weight, what of it is the gate's and what is up's go to panels of their own."""
        weight = self._weight
        boundary = max(weight.out_features - first_row, 0)
        if not weight.gated or boundary >= len(rows):
            self._add_part(0, first_row, rows)
        elif boundary == 0:
            self._add_part(1, first_row - weight.out_features, rows)
        else:
            self._add_part(0, first_row, rows[:boundary])
            self._add_part(1, 0, rows[boundary:])

    def _add_part(self, part: int, first_column: int, rows: Rows) -> None:
        weight = self._weight
        place = PanelPlace(weight.array.ctypes.data, first_column, 2 if weight.gated else 1, part)
        if isinstance(rows, np.ndarray):
            arrays = [np.require(rows, np.float32, ["C", "A"])]
            addresses = [arrays[0].ctypes.data, None, None, None]
        else:
            assert weight.format == "int4", f"rows in four bits are for int4, not {weight.format}"
            arrays = [np.ascontiguousarray(array) for array in (rows.values, rows.scales, rows.minimums)]
            addresses = [None, *(array.ctypes.data for array in arrays)]
        self._pack(weight.format, SourceRows(*addresses, *rows.shape), place)

    def finish(self, bias: Float32 | None) -> PackedLinear:
        return replace(self._weight, bias=None if bias is None else np.require(bias, np.float32, ["C", "A"]))


def _end_threads(library: Library, replay: int, process_id: int) -> None:
    """A forked process has the pool's memory, but not its threads: it can neither end them nor wait for them."""
    if os.getpid() == process_id:
        library.destroy_replay(replay)


def _native(program: CompiledProgram) -> NativeProgram:
    assert isinstance(program, NativeProgram), "a backend runs its own programs"
    return program
