"""The choice of a backend."""

from logging import getLogger

from pelton import envs
from pelton.ops.backend import Backend
from pelton.ops.cpu import CPUBackend, load_library
from pelton.ops.interpreter import NumpyBackend

logger = getLogger(__name__)


def create_backend(num_threads: int, *, eager: bool = False, check_nan: bool = False) -> Backend:
    """Native kernels of the best level for this processor, or numpy where none are installed, with a warning.

    PELTON_CPU_ISA forces a level, or numpy. Raises ValueError for a level that cannot be had.
    """
    wanted = envs.cpu_isa()
    if wanted == "numpy":
        return NumpyBackend(check_nan=check_nan)
    library = load_library(wanted)
    if library is None:
        logger.warning(
            "this installation has no native kernels, so numpy computes, many times slower; "
            "install a C++ compiler (Debian: apt install g++) and install Pelton again"
        )
        return NumpyBackend(check_nan=check_nan)
    return CPUBackend(library, num_threads, eager=eager, check_nan=check_nan)
