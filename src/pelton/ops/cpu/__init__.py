"""The operator set as native kernels for CPUs."""

from pelton.ops.cpu.backend import CPUBackend
from pelton.ops.cpu.library import LEVELS, load_library

__all__ = ["LEVELS", "CPUBackend", "load_library"]
