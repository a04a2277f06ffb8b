"""Readings of a process and all its descendants: memory, CPU time, bytes read.

A process that ends while it is looked at, or that we may not look at, counts as nothing: the first is the normal
case, and the second cannot happen to children of ours that did not change their user.
"""

from __future__ import annotations

import os
from pathlib import Path

from autotune.hardware.cgroup import read_text

__all__ = ["io_bytes", "tree_cpu_s", "tree_memory_bytes", "tree_pids", "tree_resident_bytes"]

_ROOT = Path("/")


def tree_pids(pid: int, *, root: Path = _ROOT) -> list[int]:
    """A process and its living descendants.

    Args:
        pid: The process at the top.
        root: Where ``proc`` is found.

    Returns:
        ``pid`` first, then its descendants; empty when it is gone.
    """
    if _lists_children(root):
        return _linux_pids(pid, root)
    import psutil

    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def tree_memory_bytes(pid: int, *, root: Path = _ROOT) -> int:
    """Memory of a process tree, pages shared within it counted once.

    Args:
        pid: The process at the top.
        root: Where ``proc`` is found.

    Returns:
        The sum of proportional set sizes (Linux), else of resident sets, in bytes; 0 when the process is gone.

    Source: Linux, Documentation/filesystems/proc.rst, ``smaps_rollup``.
    """
    return sum(_memory_bytes(each, root) for each in tree_pids(pid, root=root))


def tree_resident_bytes(pid: int, *, root: Path = _ROOT) -> int:
    """Resident memory of a process tree, shared pages counted in each: an upper bound that costs next to nothing.

    Args:
        pid: The process at the top.
        root: Where ``proc`` is found.

    Returns:
        The sum of resident sets, in bytes; 0 when the process is gone, and where the system does not say.
    """
    pages = 0
    for each in tree_pids(pid, root=root):
        statm = (read_text(root / f"proc/{each}/statm") or "").split()
        pages += int(statm[1]) if len(statm) > 1 else 0
    return pages * int(os.sysconf("SC_PAGE_SIZE")) if pages else 0


def tree_cpu_s(pid: int) -> float:
    """CPU time a process tree has used, ended descendants included once they were waited for.

    Args:
        pid: The process at the top.

    Returns:
        User plus system seconds; 0 when the process is gone.
    """
    import psutil

    total = 0.0
    for each in tree_pids(pid):
        try:
            times = psutil.Process(each).cpu_times()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += times.user + times.system
        # On macOS and Windows psutil always gives 0 for children.
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def io_bytes(pid: int, *, root: Path = _ROOT) -> tuple[int, int] | None:
    """What a process tree has read, ended descendants included once they were waited for.

    Args:
        pid: The process at the top.
        root: Where ``proc`` is found.

    Returns:
        Bytes asked for by read calls (``rchar``) and bytes that really came from storage (``read_bytes``), whose
        ratio tells how much the page cache served; None where the system does not say.

    Source: Linux, Documentation/filesystems/proc.rst, ``/proc/<pid>/io``.
    """
    asked = fetched = 0
    seen = False
    for each in tree_pids(pid, root=root):
        values = dict(line.split(": ", 1) for line in _lines(root / f"proc/{each}/io") if ": " in line)
        if "rchar" in values and "read_bytes" in values:
            seen = True
            asked += int(values["rchar"])
            fetched += int(values["read_bytes"])
    return (asked, fetched) if seen else None


def _lists_children(root: Path) -> bool:
    # Kernels built without CONFIG_PROC_CHILDREN lack the file.
    return (root / "proc/self/task").is_dir() and next((root / "proc/self/task").glob("*/children"), None) is not None


def _linux_pids(pid: int, root: Path) -> list[int]:
    if not (root / f"proc/{pid}").is_dir():
        return []
    found, waiting = {}, [pid]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = True
            waiting += _children(each, root)
    return list(found)


def _children(pid: int, root: Path) -> list[int]:
    try:
        tasks = list((root / f"proc/{pid}/task").iterdir())
    except OSError:
        return []  # it has just ended
    return [int(child) for task in tasks for child in (read_text(task / "children") or "").split()]


def _memory_bytes(pid: int, root: Path) -> int:
    for line in _lines(root / f"proc/{pid}/smaps_rollup"):
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    statm = (read_text(root / f"proc/{pid}/statm") or "").split()
    if len(statm) > 1:
        return int(statm[1]) * os.sysconf("SC_PAGE_SIZE")
    if (root / "proc/self").exists():
        return 0  # it has ended
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def _lines(path: Path) -> list[str]:
    return (read_text(path) or "").splitlines()
