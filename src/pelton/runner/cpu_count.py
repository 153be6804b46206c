"""How many processor cores this process may really use."""

import os
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

from pelton.runner.cgroups import ControlGroup, control_groups


def available_cores(root: Path = Path("/"), cpus: Collection[int] | None = None) -> int:
    """Physical cores among `cpus`, but no more than the CPU time that the process's control groups are given.

    Hardware threads of one core count once: they share the units that the kernels keep busy. A quota is rounded down,
    since a thread that is stopped until the next period holds up those that wait for it. At least 1.

    `cpus`: those that the process may run on, by default. Reads the processor's topology and the CPU controllers of
    cgroup v2 and v1 below `root`.
    """
    cores = {_hardware_threads(root, cpu) for cpu in (usable_cpus() if cpus is None else cpus)}
    quotas = [_quota(group) for group in control_groups(root, "cpu")]
    return max(1, min([len(cores), *(int(quota) for quota in quotas if quota is not None)]))


def divide_cpus(num_parts: int, root: Path = Path("/"), cpus: Collection[int] | None = None) -> list[list[int]]:
    """The CPUs for each of several processes that share the machine: whole cores, as evenly as possible.

    With more processes than cores, several have the same core. Hardware threads of one core stay together.
    `cpus` and `root` are as for `available_cores`.
    """
    cores: dict[str, list[int]] = {}
    for cpu in sorted(usable_cpus() if cpus is None else cpus):
        cores.setdefault(_hardware_threads(root, cpu), []).append(cpu)
    groups = list(cores.values())
    if num_parts >= len(groups):
        return [groups[part % len(groups)] for part in range(num_parts)]
    bounds = [len(groups) * part // num_parts for part in range(num_parts + 1)]
    return [[cpu for group in groups[start:end] for cpu in group] for start, end in pairwise(bounds)]


def usable_cpus() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _hardware_threads(root: Path, cpu: int) -> str:
    """A name for the core that a CPU belongs to: the list of its hardware threads."""
    try:
        return (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(group: ControlGroup) -> float | None:
    """How many CPUs' time the group gets; None if it has no limit."""
    try:
        if group.version == 2:
            quota, period = (group.folder / "cpu.max").read_text().split()
        else:
            quota, period = ((group.folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        # A v1 group without a limit has the quota -1; one of v2 says max.
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
