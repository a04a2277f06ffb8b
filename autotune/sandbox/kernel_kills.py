"""How often the kernel killed a process for lack of memory."""

from __future__ import annotations

from pathlib import Path

__all__ = ["kernel_kills"]


def kernel_kills(root: Path = Path("/")) -> int:
    """Sum of all ``oom_kill`` counters that concern this process; only its rise means something.

    Reads those of its own control groups (version 2: ``memory.events``, version 1: ``memory.oom_control``), each
    where the group's path leads and, because a container often sees another path than its mount has, at the
    mount's top; without any the whole system's (``/proc/vmstat``).

    Args:
        root: Top of the file system; another one in tests.

    Returns:
        0 where nothing can be read (no Linux).
    """
    counts = [_counter(path) for path in _group_files(root)]
    found = [count for count in counts if count is not None]
    return sum(found) if found else _counter(root / "proc/vmstat") or 0


def _group_files(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    top = root / "sys/fs/cgroup"
    files: set[Path] = set()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files |= {top / part.strip("/") / "memory.events" for part in (path, "")}
        elif "memory" in controllers.split(","):
            files |= {top / "memory" / part.strip("/") / "memory.oom_control" for part in (path, "")}
    return sorted(files)


def _counter(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
