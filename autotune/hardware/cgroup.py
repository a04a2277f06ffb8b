"""Control groups of versions 1 and 2: which directories bind this process, from its own up to the root."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["CpuQuota", "MemoryLimit", "cgroup_levels", "cpu_quota", "key_values", "memory_limit", "read_text"]

# Version 1 writes "no limit" as the largest multiple of the page size, about 2**63.
_UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """The tightest CPU time limit among the groups this process is in."""

    cores: float
    """CPU seconds per second."""
    directory: Path
    """The group that sets it."""
    version: int
    """1 or 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The tightest memory limit among the groups this process is in."""

    limit_bytes: int
    available_bytes: int
    """The least room left in any limited group, page cache that can be dropped counted as room."""


def cpu_quota(root: Path) -> CpuQuota | None:
    """The CPU quota of this process.

    Args:
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        The tightest quota from the process's own group up, or None without one.
    """
    version, levels = cgroup_levels("cpu", root)
    quotas = []
    for directory in levels:
        cores = _quota_v2(directory) if version == 2 else _quota_v1(directory)
        if cores is not None:
            quotas.append(CpuQuota(cores=cores, directory=directory, version=version))
    return min(quotas, key=lambda quota: quota.cores, default=None)


def memory_limit(root: Path) -> MemoryLimit | None:
    """The memory limit of this process, and what is left of it.

    Args:
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        The tightest limit from the process's own group up, or None without one.
    """
    version, levels = cgroup_levels("memory", root)
    names = ("memory.max", "memory.high") if version == 2 else ("memory.limit_in_bytes",)
    limits, rooms = [], []
    for directory in levels:
        found = [value for value in (_number(directory / name) for name in names) if value is not None]
        limit = min(found, default=_UNLIMITED_BYTES)
        if limit < _UNLIMITED_BYTES:
            limits.append(limit)
            rooms.append(max(0, limit - _held_bytes(directory, version)))
    return MemoryLimit(limit_bytes=min(limits), available_bytes=min(rooms)) if limits else None


def cgroup_levels(controller: str, root: Path) -> tuple[int, list[Path]]:
    """The group directories that bind this process for one controller.

    Args:
        controller: ``"cpu"`` or ``"memory"``.
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        The version (1 or 2) and the existing directories, the process's own group first, the root group last.

    Source: cgroups(7); proc_pid_mountinfo(5) for containers that see only their own part of the tree.
    """
    groups = dict(_own_groups(root))
    for names, path in groups.items():
        if controller in names.split(","):
            mounts = [*_mounts("cgroup", root, controller), ("/", f"/sys/fs/cgroup/{names}")]
            return 1, _existing_levels(path, [*mounts, ("/", f"/sys/fs/cgroup/{controller}")], root)
    defaults = [("/", "/sys/fs/cgroup"), ("/", "/sys/fs/cgroup/unified")]
    return 2, _existing_levels(groups.get("", "/"), [*_mounts("cgroup2", root), *defaults], root)


def read_text(path: Path) -> str | None:
    """The text of a small kernel file, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def key_values(path: Path) -> Mapping[str, int]:
    """The ``key number`` lines of a kernel file; empty where it cannot be read."""
    lines = (line.split() for line in (read_text(path) or "").splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def _own_groups(root: Path) -> Iterator[tuple[str, str]]:
    # "4:cpu,cpuacct:/path" (version 1), "0::/path" (version 2)
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            yield parts[1], parts[2]


def _mounts(file_system: str, root: Path, controller: str | None = None) -> list[tuple[str, str]]:
    found = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 3 or after[0] != file_system:
            continue
        if controller is None or controller in after[2].split(","):
            found.append((_unescaped(before[3]), _unescaped(before[4])))
    return found


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _existing_levels(path: str, mounts: list[tuple[str, str]], root: Path) -> list[Path]:
    for mount_root, mount_point in mounts:
        top = root / mount_point.lstrip("/")
        if not top.is_dir():
            continue
        inside = PurePosixPath(_inside(path, mount_root))
        levels = [top / str(level).lstrip("/") for level in (inside, *inside.parents)]
        return [level for level in levels if level.is_dir()]
    return []


def _inside(path: str, mount_root: str) -> str:
    # A container's mount starts at its own group; a path outside of it is that group itself.
    if ".." in PurePosixPath(path).parts:
        return "/"
    if mount_root == "/":
        return path or "/"
    return path[len(mount_root) :] or "/" if (path + "/").startswith(mount_root + "/") else "/"


def _quota_v2(directory: Path) -> float | None:
    words = (read_text(directory / "cpu.max") or "").split()
    if not words or not words[0].isdigit():
        return None  # "max"
    period = int(words[1]) if len(words) > 1 and words[1].isdigit() else 100_000
    return int(words[0]) / period if period else None


def _quota_v1(directory: Path) -> float | None:
    quota, period = _number(directory / "cpu.cfs_quota_us"), _number(directory / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _number(path: Path) -> int | None:
    text = (read_text(path) or "").strip()
    return int(text) if text.isdigit() else None  # not for "max" and -1


def _held_bytes(directory: Path, version: int) -> int:
    used = _number(directory / ("memory.current" if version == 2 else "memory.usage_in_bytes")) or 0
    droppable = "inactive_file" if version == 2 else "total_inactive_file"
    return max(0, used - key_values(directory / "memory.stat").get(droppable, 0))
