"""The highest memory of this process over a stretch of work, read from the kernel's high-water marks."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from autotune.hardware.cgroup import read_text
from autotune.hardware.process_tree import tree_memory_bytes

__all__ = ["PeakMemory", "ResidentPeak"]

_ROOT = Path("/")
_RESET_HIGH_WATER_MARK = "5"
_RESET_SLACK_BYTES = 2**23  # pages come and go between putting the mark back and reading it


@dataclass(frozen=True, slots=True)
class _Level:
    """Bytes in use now, and the most there ever were."""

    now: int
    high: int


class PeakMemory:
    """Measures the highest memory of this process while it is entered; may be entered again and again.

    Results are on the scale of ``tree_memory_bytes`` at the first entry: what was in use then plus the growth since.
    Where a limit on the address space is in force, growth means address space, which is what an allocation then
    fails for; elsewhere it means resident memory. Marks of the kernel are exact, however short the peak was.

    Args:
        root: Where ``proc`` is found.

    Attributes:
        peak_bytes: After leaving. None where the mark cannot be put back and an earlier peak was higher.
        limit_bytes: What ``peak_bytes`` could have reached before an allocation failed; None without such a limit.

    Source: Linux, Documentation/filesystems/proc.rst: ``clear_refs``, ``VmHWM`` and ``VmPeak`` in ``status``.
    """

    def __init__(self, *, root: Path = _ROOT) -> None:
        self._root = root
        self._before = _Level(0, 0)
        self._bounded = False
        self._not_ours: dict[bool, int] = {}  # reserved but not in use, or shared: part of the mark and no memory
        self.peak_bytes: int | None = None
        self.limit_bytes: int | None = None

    def __enter__(self) -> PeakMemory:
        limit = _address_space_limit()
        self._bounded = limit is not None
        if not self._bounded:
            _reset_mark(self._root)
        self._before = self._level()
        if self._bounded not in self._not_ours:
            in_use = tree_memory_bytes(os.getpid(), root=self._root)
            self._not_ours[self._bounded] = self._before.now - in_use
        self.peak_bytes = None
        self.limit_bytes = None if limit is None else limit - self._not_ours[True]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after, before = self._level(), self._before
        if after.high > before.high or before.high <= before.now:
            self.peak_bytes = max(after.high, before.now) - self._not_ours[self._bounded]

    def _level(self) -> _Level:
        kib = _status_kib(self._root)
        if kib is None:
            return _level_elsewhere()
        now, high = ("VmSize", "VmPeak") if self._bounded else ("VmRSS", "VmHWM")
        return _Level(kib.get(now, 0) * 1024, kib.get(high, 0) * 1024)


class ResidentPeak:
    """How far the resident memory of this process rose, since ``start``, above what it is now.

    Args:
        root: Where ``proc`` is found.
    """

    def __init__(self, *, root: Path = _ROOT) -> None:
        self._root = root
        self._before = _Level(0, 0)

    def start(self) -> None:
        """Forgets earlier peaks, where the kernel allows."""
        _reset_mark(self._root)
        self._before = self._level()

    def excess_bytes(self) -> int:
        """0 where the mark cannot be put back and an earlier peak was higher."""
        now = self._level()
        known = now.high > self._before.high or self._before.high <= self._before.now + _RESET_SLACK_BYTES
        return max(0, now.high - now.now) if known else 0

    def _level(self) -> _Level:
        kib = _status_kib(self._root)
        if kib is None:
            return _level_elsewhere()
        return _Level(kib.get("VmRSS", 0) * 1024, kib.get("VmHWM", 0) * 1024)


def _status_kib(root: Path) -> dict[str, int] | None:
    text = read_text(root / "proc/self/status")
    if text is None:
        return None
    return {name: int(value) for name, value in re.findall(r"^(Vm\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _address_space_limit() -> int | None:
    if sys.platform != "linux":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _reset_mark(root: Path) -> None:
    try:
        (root / "proc/self/clear_refs").write_text(_RESET_HIGH_WATER_MARK)
    except OSError:  # not Linux, or not allowed here: then only a new record can be read
        return


def _level_elsewhere() -> _Level:
    import psutil

    memory = psutil.Process().memory_info()
    if hasattr(memory, "peak_wset"):  # Windows
        return _Level(int(memory.rss), int(memory.peak_wset))
    import resource

    return _Level(int(memory.rss), int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))  # bytes on macOS
