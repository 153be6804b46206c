"""How much memory this process may still use."""

import os
from pathlib import Path

from pelton.runner.cgroups import ControlGroup, control_groups

_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Version of control groups -> files of limit and usage, and the statistic of page cache that can go."""


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: what the machine has left, within its control groups.

    Reads `/proc/meminfo` and the memory controllers of cgroup v2 and v1 below `root`. Where there is no
    `/proc`, half of the physical memory.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    # Emulated kernels may lack MemAvailable.
    available = int(fields.get("MemAvailable", fields["MemFree"]).split()[0]) * 1024
    headrooms = [_headroom(group) for group in control_groups(root, "memory")]
    return max(0, min([available, *(headroom for headroom in headrooms if headroom is not None)]))


def _headroom(group: ControlGroup) -> int | None:
    """Limit less usage, page cache that can go not counted; None if the group has no limit."""
    limit, usage, reclaimable = _FILES[group.version]
    try:
        limit_text = (group.folder / limit).read_text().strip()
        if limit_text == "max":
            return None
        used = int((group.folder / usage).read_text())
        stat = dict(line.split() for line in (group.folder / "memory.stat").read_text().splitlines())
        return int(limit_text) - used + int(stat.get(reclaimable, 0))
    except (OSError, ValueError):
        return None
