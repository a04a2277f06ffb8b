"""Host memory: RAM and the control group's limit, shared memory, open files, the kernel's kills."""

from __future__ import annotations

import os
import re
from pathlib import Path

from autotune.hardware.cgroup import cgroup_levels, key_values, memory_limit, read_text

__all__ = ["oom_kill_count", "open_file_limit", "read_ram", "shm_free_bytes"]


def read_ram(*, root: Path, notes: list[str]) -> tuple[int, int]:
    """RAM of this process: the machine's, or less where the control group says so.

    Args:
        root: Where ``proc`` and ``sys`` are found.
        notes: Gets a line where a control group is the tighter bound.

    Returns:
        Total and available bytes.
    """
    total, available = _host_ram(root)
    limit = memory_limit(root)
    if limit is None:
        return total, available
    if limit.limit_bytes < total:
        notes.append(f"RAM is bounded by the cgroup: {limit.limit_bytes:,} of the machine's {total:,} bytes.")
    return min(total, limit.limit_bytes), min(available, limit.available_bytes)


def shm_free_bytes(root: Path = Path("/")) -> int | None:
    """Free bytes in ``/dev/shm``, through which loader workers pass batches; None where there is no such place."""
    if not hasattr(os, "statvfs"):
        return None
    try:
        stats = os.statvfs(root / "dev/shm")
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def open_file_limit() -> int | None:
    """Files this process may hold open (soft limit); None where there is no limit or none can be read."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def oom_kill_count(root: Path = Path("/")) -> int | None:
    """How many processes the kernel has killed for want of memory, in our control group where it counts.

    A difference of two readings is evidence for ``oom.exit_is_memory``.

    Args:
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        The group's counter, else the machine's, else None.
    """
    version, levels = cgroup_levels("memory", root)
    name = "memory.events" if version == 2 else "memory.oom_control"
    for directory in levels:
        counters = key_values(directory / name)
        if "oom_kill" in counters:
            return counters["oom_kill"]
    return key_values(root / "proc/vmstat").get("oom_kill")


def _host_ram(root: Path) -> tuple[int, int]:
    text = read_text(root / "proc/meminfo") or ""
    kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}
    if "MemTotal" in kib and "MemAvailable" in kib:
        return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)
