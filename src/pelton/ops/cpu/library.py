"""The native libraries and their C interface (native/runtime/api.cpp): one library per instruction-set level."""

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

from pelton import envs
from pelton.ops.quantize import TOO_LARGE_FOR_INT4

LEVELS = ("portable", "avx2", "avx512", "amx")
"""Instruction-set levels, the best last."""

INTERFACE = 3
"""Of the C interface; one more with every change to it, here and in native/runtime/api.cpp."""

READ_BLOCK = 16384
"""Bytes: `pelton::kReadBlock`."""

_FOLDER = Path(__file__).with_name("lib")
_MESSAGE_BYTES = 512
BUSY = "busy: a backend takes one call at a time"
_DOES_NOT_FIT = 2
_MISFITS = {
    "int8": "it has numbers that are not finite, which int8 cannot hold; set quantization to none instead",
    "int4": TOO_LARGE_FOR_INT4,
}
"""Format -> what to say of numbers that it cannot hold."""

DTYPE_NUMBERS = {name: i for i, name in enumerate(("float32", "bfloat16", "int32", "int64", "uint32", "uint64"))}
"""`pelton::DType` of arrays."""
FORMAT_NUMBERS = {"fp32": 0, "bf16": 1, "int8": 6, "int4": 7}
"""`pelton::DType` of packed weights."""


class ArgSpec(ctypes.Structure):
    """`pelton::ArgSpec`."""

    _fields_ = (
        ("kind", c_int32),
        ("dtype", c_int32),
        ("dim", c_int32),
        ("is_tiled", c_int32),
        ("rows", c_int64),
        ("cols", c_int64),
        ("row_bytes", c_int64),
        ("value", c_int64),
        ("real", c_double),
    )


ABSENT, MEMORY, INPUT, NUMBER = range(4)
"""Kinds of arguments."""


class LaunchSpec(ctypes.Structure):
    """`pelton::LaunchSpec`."""

    _fields_ = (("kernel", c_char_p), ("num_args", c_int32), ("args", POINTER(ArgSpec)))


class RunSpec(ctypes.Structure):
    """`pelton::Run`."""

    _fields_ = (
        ("program", c_void_p),
        ("sizes", POINTER(c_int64)),
        ("inputs", POINTER(c_int64)),
        ("tile_start", c_int64),
        ("first", c_int32),
        ("last", c_int32),
    )


class SourceRows(ctypes.Structure):
    """`pelton::SourceRows`: rows [n, k] that are float32, or in four bits."""

    _fields_ = (
        ("floats", c_void_p),
        ("values", c_void_p),
        ("scales", c_void_p),
        ("minimums", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
    )


class PanelPlace(ctypes.Structure):
    """`pelton::PanelPlace`: where columns go in a packed weight."""

    _fields_ = (("target", c_void_p), ("first_column", c_int64), ("panel_stride", c_int64), ("panel_offset", c_int64))


class Library:
    """The kernels of one level."""

    def __init__(self, path: Path, level: str) -> None:
        """Raises ValueError for a file that is no library, or one of another version."""
        self.level = level
        try:
            self._functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise ValueError(f"{path} cannot be loaded ({error}); install Pelton again") from None
        interface = getattr(self._functions, "pelton_interface", None)
        if interface is None or interface() != INTERFACE:
            raise ValueError(f"{path} is of another version of Pelton; install Pelton again")
        self._declare()

    def _declare(self) -> None:
        functions = self._functions
        functions.pelton_supports.argtypes = (c_char_p,)
        functions.pelton_replay_create.argtypes = (c_int32, c_char_p, c_int64)
        functions.pelton_replay_create.restype = c_void_p
        functions.pelton_replay_destroy.argtypes = (c_void_p,)
        functions.pelton_program_create.argtypes = (POINTER(LaunchSpec), c_int32, c_char_p, c_int64)
        functions.pelton_program_create.restype = c_void_p
        functions.pelton_program_destroy.argtypes = (c_void_p,)
        functions.pelton_run.argtypes = (c_void_p, POINTER(RunSpec), c_int32, c_char_p, c_int64)
        functions.pelton_packed_bytes.argtypes = (c_int32, c_int64, c_int64, c_int64)
        functions.pelton_packed_bytes.restype = c_int64
        functions.pelton_pack.argtypes = (c_void_p, c_int32, POINTER(SourceRows), POINTER(PanelPlace))
        functions.pelton_is_busy.argtypes = (c_void_p,)
        functions.pelton_barrier_ns.argtypes = (c_void_p,)
        functions.pelton_barrier_ns.restype = c_double
        functions.pelton_multiply_rate.argtypes = (c_void_p, c_int32, c_int64)
        functions.pelton_multiply_rate.restype = c_double
        functions.pelton_read_rate.argtypes = (c_void_p, c_void_p, c_int64, c_int64)
        functions.pelton_read_rate.restype = c_double
        functions.pelton_replay_destroy.restype = functions.pelton_program_destroy.restype = None

    def supports(self, level: str) -> bool:
        """Whether this processor can run a level."""
        return bool(self._functions.pelton_supports(level.encode()))

    def create_replay(self, num_threads: int) -> int:
        """Start threads. -> handle. Raises OSError if there cannot be so many."""
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        handle = self._functions.pelton_replay_create(num_threads, message, _MESSAGE_BYTES)
        if not handle:
            raise OSError(f"{num_threads} threads cannot be started: {message.value.decode()}")
        return int(handle)

    def destroy_replay(self, handle: int) -> None:
        self._functions.pelton_replay_destroy(handle)

    def create_program(self, launches: "ctypes.Array[LaunchSpec]") -> int:
        """-> handle. What the launches point to must outlive it; the launches themselves need not."""
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        handle = self._functions.pelton_program_create(launches, len(launches), message, _MESSAGE_BYTES)
        assert handle, message.value.decode()
        return int(handle)

    def destroy_program(self, handle: int) -> None:
        self._functions.pelton_program_destroy(handle)

    def run(self, replay: int, runs: "ctypes.Array[RunSpec]") -> None:
        """One native call, without the interpreter's lock. Raises RuntimeError if a kernel refuses its arguments."""
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self._functions.pelton_run(replay, runs, len(runs), message, _MESSAGE_BYTES):
            raise RuntimeError(message.value.decode())

    def barrier_ns(self, replay: int) -> float:
        return _measured(self._functions.pelton_barrier_ns(replay))

    def multiply_rate(self, replay: int, weight_format: str, seconds: float) -> float:
        """Multiplications and additions per second that all threads do, for so long, of the kind that a format's
        products are (native/ops/probes.h): what arithmetic alone can do at best."""
        number = FORMAT_NUMBERS[weight_format]
        return _measured(self._functions.pelton_multiply_rate(replay, number, round(seconds * 1e9)))

    def read_rate(self, replay: int, address: int, num_bytes: int, seconds: float) -> float:
        """Bytes per second that all threads read, for so long, each a part of this memory, which is overwritten."""
        return _measured(self._functions.pelton_read_rate(replay, address, num_bytes, round(seconds * 1e9)))

    def check_idle(self, replay: int) -> None:
        """Raise RuntimeError while another thread's call is under way."""
        if self._functions.pelton_is_busy(replay):
            raise RuntimeError(BUSY)

    def packed_bytes(self, weight_format: str, out_features: int, in_features: int, num_parts: int) -> int:
        """Of a packed weight, or of several whose panels are interleaved."""
        number = FORMAT_NUMBERS[weight_format]
        return int(self._functions.pelton_packed_bytes(number, out_features, in_features, num_parts))

    def pack(self, replay: int, weight_format: str, rows: SourceRows, place: PanelPlace) -> None:
        """Pack rows as columns of a zeroed weight. Raises ValueError for numbers that the format cannot hold."""
        error = self._functions.pelton_pack(replay, FORMAT_NUMBERS[weight_format], rows, place)
        if error == _DOES_NOT_FIT:
            raise ValueError(_MISFITS[weight_format])
        if error:
            raise RuntimeError(BUSY)


def _measured(figure: float) -> float:
    if figure < 0:
        raise RuntimeError(BUSY)
    return figure


@cache
def load_library(wanted: str | None = None) -> Library | None:
    """The kernels of the best level that this processor can run, or of the wanted one. None if nothing is installed.

    Raises ValueError for a level that does not exist, is not installed or does not run here, and for an installation
    that is broken.
    """
    if wanted is not None and wanted not in LEVELS:
        raise ValueError(f"PELTON_CPU_ISA must be one of {', '.join(LEVELS)} or numpy, got {wanted!r}")
    folder = envs.native_libraries() or _FOLDER
    paths = {level: folder / f"libpelton_{level}.so" for level in LEVELS}
    installed = {level: path for level, path in paths.items() if path.exists()}
    if not installed:
        if folder != _FOLDER:
            raise ValueError(f"PELTON_NATIVE_LIBRARIES is {str(folder)!r}, which has no kernel libraries")
        if wanted is not None:
            raise ValueError(f"PELTON_CPU_ISA is {wanted!r}, but this installation has no native kernels")
        return None
    if "portable" not in installed:
        others = ", ".join(path.name for path in installed.values())
        raise ValueError(f"{folder} has {others} but no {paths['portable'].name}; install Pelton again")
    portable = Library(installed["portable"], "portable")
    # To ask for amx requests it of the system for the whole process.
    level = next((level for level in reversed(installed) if wanted in (None, level) and portable.supports(level)), None)
    if level is None:
        reason = "this processor cannot run it" if wanted in installed else "it is not installed"
        raise ValueError(f"PELTON_CPU_ISA is {wanted!r}, but {reason}; installed are {', '.join(installed)}")
    return portable if level == "portable" else Library(installed[level], level)
