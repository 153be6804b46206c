"""What a figure was measured on: without it, figures cannot be compared."""

import os
import platform
from collections.abc import Collection
from pathlib import Path

from pelton import __version__
from pelton.ops.backend import Backend
from pelton.ops.cpu import CPUBackend
from pelton.runner.cpu_count import available_cores, usable_cpus
from pelton.runner.memory import available_memory


def describe_machine(backend: Backend | None = None) -> dict[str, object]:
    """The machine, for a benchmark's JSON. What the system does not tell is None.

    - `cpu`: the processor's model; `architecture`: such as x86_64; `cpus`: those that this process may run on;
      `cores`: physical ones among them that its control groups give it the time of, as `--num-threads` has by default
    - `memory_bytes`: of the machine; `available_memory_bytes`: what this process may still take
    - `os`, `python`, `pelton`: versions

    With a backend also `kernels`, its name. With a native one, `level`, `num_threads` and `barrier_ns`, how long the
    threads take to wait for each other, measured now: it tells how far apart their cores are, and virtual machines move
    them. Raises RuntimeError while another thread uses the backend.
    """
    facts: dict[str, object] = {
        "cpu": cpu_model(),
        "architecture": platform.machine(),
        "cpus": len(usable_cpus()),
        "cores": available_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "available_memory_bytes": available_memory(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "pelton": __version__,
    }
    if backend is not None:
        facts["kernels"] = backend.name
    if isinstance(backend, CPUBackend):
        facts |= {
            "level": backend.level,
            "num_threads": backend.num_threads,
            "barrier_ns": round(backend.barrier_ns()),
        }
    return facts


def cpu_model(root: Path = Path("/")) -> str | None:
    """The processor as the system below `root` names it, on some ARM boards the board; None if it does not."""
    try:
        fields = [line.split(":", 1) for line in (root / "proc/cpuinfo").read_text().splitlines() if ":" in line]
    except OSError:
        return platform.processor() or None
    values = {name.strip(): value.strip() for name, value in reversed(fields)}
    return values.get("model name") or values.get("Model") or values.get("Hardware") or None


def last_level_cache_bytes(root: Path = Path("/"), cpus: Collection[int] | None = None) -> int | None:
    """All last-level caches of the CPUs that this process may run on, each counted once; None if the system tells none.

    `cpus` are those CPUs, by default; below `root` are the system's files. What a virtual machine is told may be shared
    with others.
    """
    sizes: dict[tuple[int, str], int] = {}
    for cpu in usable_cpus() if cpus is None else cpus:
        caches = (_cache(folder) for folder in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"))
        sizes |= dict(cache for cache in caches if cache is not None)
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None


def _cache(folder: Path) -> tuple[tuple[int, str], int] | None:
    """Level and the CPUs that share it, and bytes; None if it is not for data, or the system does not tell."""
    try:
        kind, level, shared, size = (
            (folder / name).read_text().strip() for name in ("type", "level", "shared_cpu_list", "size")
        )
        return None if kind == "Instruction" else ((int(level), shared), int(size.removesuffix("K")) * 1024)
    except (OSError, ValueError):
        return None
