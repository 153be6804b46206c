"""The control groups that this process is in, as Linux shows them."""

from pathlib import Path
from typing import NamedTuple


class ControlGroup(NamedTuple):
    """One group that may set limits. What it has no file for, it does not limit."""

    version: int
    """1 or 2: they have other files for the same limits."""
    folder: Path


def control_groups(root: Path, controller: str) -> list[ControlGroup]:
    """Every group below `root` that may limit what `controller` controls, from the process's own up to the top."""
    try:
        membership = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in membership:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, mount = 2, root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, mount = 1, root / "sys/fs/cgroup" / controller
        else:
            continue
        own = Path(path.lstrip("/"))
        groups += [ControlGroup(version, mount / group) for group in (own, *own.parents)]
    return groups
