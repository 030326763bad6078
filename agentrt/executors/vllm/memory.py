"""The memory of this machine."""

from __future__ import annotations

from pathlib import Path

import psutil


def free_memory() -> int:
    """Return the free memory of this machine in bytes, within the limits of its control group."""
    return min(int(psutil.virtual_memory().available), _left_in_group(Path("/sys/fs/cgroup")))


def _left_in_group(group: Path) -> int:
    """Return how many more bytes a control group may use; a huge number if it has no limit.

    The group counts cached files as used, but the system drops them when memory is needed.
    """
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # no control group, or version 1
        return 1 << 62
    files = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    return 1 << 62 if limit == "max" else int(limit) - used + files
