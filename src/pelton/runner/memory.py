"""How much memory this process may still use."""

import os
from pathlib import Path


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
    return max(0, min([available, *_cgroup_headrooms(root)]))


def _cgroup_headrooms(root: Path) -> list[int]:
    """Bytes left in every memory control group that this process is in, up to the top."""
    try:
        membership = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    headrooms = []
    for line in membership:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        relative = Path(path.lstrip("/"))
        for group in (relative, *relative.parents):
            headroom = _cgroup_headroom(mount / group, *names)
            if headroom is not None:
                headrooms.append(headroom)
    return headrooms


def _cgroup_headroom(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Limit less usage, page cache that can go not counted; None if the group has no limit."""
    try:
        limit_text = (group / limit).read_text().strip()
        if limit_text == "max":
            return None
        used = int((group / usage).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(limit_text) - used + int(stat.get(reclaimable, 0))
    except (OSError, ValueError):
        return None
