"""What the machine can do at best: how fast its threads read, and multiply."""

from collections.abc import Collection, Mapping
from statistics import median
from typing import Any

from pelton.bench.machine import last_level_cache_bytes
from pelton.ops.backend import Backend
from pelton.ops.cpu import CPUBackend
from pelton.ops.packed_linear import FORMATS
from pelton.runner.memory import available_memory

_MEMORY_BYTES = 256 * 2**20
"""What is read to measure memory, if it is four times as much as the last-level cache; else more."""
_UNKNOWN_CACHE = 256 * 2**20
"""What the last-level cache is taken for at most, where the system does not tell."""


def check_native(backend: Backend) -> CPUBackend:
    """The backend. Raises ValueError if it has no native kernels."""
    if isinstance(backend, CPUBackend):
        return backend
    raise ValueError(
        "there are no ceilings to measure, for numpy computes here instead of native kernels; leave out "
        "PELTON_CPU_ISA=numpy, or if there are none, install a C++ compiler (Debian: apt install g++) and install "
        "Pelton again"
    )


class Ceilings:
    """Measured by the threads of a backend, in several rounds: the best of them count. Figures are per second."""

    def __init__(self, backend: Backend, sizes: Collection[int] = ()) -> None:
        """`sizes`: bytes for which the speed of reading is asked. What is not much more than the last-level cache is
        measured as it is, for caches keep a part of it.

        Raises ValueError for a backend without native kernels.
        """
        self._backend = check_native(backend)
        self.last_level_cache = last_level_cache_bytes()
        wanted = max(_MEMORY_BYTES, 4 * (self.last_level_cache or _UNKNOWN_CACHE))
        self.memory_size = min(wanted, available_memory() // 2)
        """Bytes that are read to measure memory."""
        self.cache_size = None if self.last_level_cache is None else self.last_level_cache // 2
        """Bytes that are read to measure the last-level cache."""
        own = {size for size in sizes if size < self.memory_size}
        measured = own | {size for size in (self.memory_size, self.cache_size) if size}
        self._reads: dict[int, list[float]] = {size: [] for size in sorted(measured)}
        self._products: dict[str, list[float]] = {name: [] for name in FORMATS}

    def measure(self, seconds: float = 0.05) -> None:
        """One round; so long for each figure."""
        for name, rates in self._products.items():
            rates.append(self._backend.multiply_rate(name, seconds))
        for size, rates in self._reads.items():
            rates.append(self._backend.read_rate(size, seconds))

    def products(self, weight_format: str) -> float:
        """Multiplications and additions."""
        return max(self._products[weight_format])

    def attention(self, cache_dtype: str) -> float:
        """Multiplications and additions with keys and values: bfloat16 is multiplied as such, or widened first."""
        return max(self.products("fp32"), self.products("bf16") if cache_dtype == "bfloat16" else 0.0)

    def reading(self, num_bytes: int) -> float:
        """Bytes, of so many in a row: one of the sizes, or any that only memory holds."""
        return max(self._reads[min(num_bytes, self.memory_size)])

    def place(self, num_bytes: int) -> str:
        """Where so many bytes are read from again and again."""
        if num_bytes >= self.memory_size:
            return "memory"
        if self.last_level_cache is None or num_bytes > self.last_level_cache:
            return "cache and memory"
        return "cache"

    def report(self) -> dict[str, Any]:
        cache = [] if self.cache_size is None else self._reads[self.cache_size]
        memory = self._reads[self.memory_size]
        return {
            "memory_gb_per_s": _giga(max(memory)),
            "median_memory_gb_per_s": _giga(median(memory)),
            "memory_buffer_bytes": self.memory_size,
            "cache_gb_per_s": _giga(max(cache)) if cache else None,
            "median_cache_gb_per_s": _giga(median(cache)) if cache else None,
            "cache_buffer_bytes": self.cache_size,
            "last_level_cache_bytes": self.last_level_cache,
            "gflop_per_s": {name: _giga(max(rates)) for name, rates in self._products.items()},
            "median_gflop_per_s": {name: _giga(median(rates)) for name, rates in self._products.items()},
        }


def _giga(rate: float) -> float:
    return round(rate / 1e9, 2)


def text(ceilings: Mapping[str, Any]) -> list[str]:
    """A report for people."""
    reading = f"Memory: {ceilings['memory_gb_per_s']:.1f} GB/s (median {ceilings['median_memory_gb_per_s']:.1f})"
    if ceilings["cache_gb_per_s"] is not None:
        reading += (
            f"; last-level cache ({ceilings['last_level_cache_bytes'] / 2**20:.0f} MiB): "
            f"{ceilings['cache_gb_per_s']:.1f} GB/s (median {ceilings['median_cache_gb_per_s']:.1f})"
        )
    medians = ceilings["median_gflop_per_s"]
    products = ", ".join(
        f"{name} {rate:.0f} (median {medians[name]:.0f})" for name, rate in ceilings["gflop_per_s"].items()
    )
    return [reading, f"Products, GFLOP/s: {products}"]
