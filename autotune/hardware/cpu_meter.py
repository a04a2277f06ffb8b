"""How much other processes disturb us: CPU time they take on our cores, while a window is measured.

On Linux two upper bounds are read and the smaller one counts. Others can take from us no more than

- the CPU time used on the cores we may run on, less our own: in a container without pinned cores that is the
  whole host's work, most of which never meets us;
- the time our threads waited for a core (run delay): when our own threads outnumber the cores they wait for
  each other as well.

Under a CPU quota that was used up in the window, waiting is the quota's doing; then others are the processes that share
the quota.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.hardware.cgroup import CpuQuota, cpu_quota, key_values, read_text
from autotune.hardware.cores import affinity
from autotune.hardware.process_tree import tree_cpu_s, tree_pids

__all__ = ["CpuMeter"]

# Kernel counters move in ticks of 1 to 10 ms per core: shorter windows would read noise.
_SHORTEST_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    clock_s: float
    own_s: float
    busy_s: float | None
    """Work of all processes on our cores."""
    stolen_s: float
    """Time the hypervisor gave to other machines."""
    delay_s: dict[tuple[int, str], float]
    """Run delay by process and thread of our tree."""
    group_s: float | None
    """Work of our quota's group."""
    throttled: int
    """How often that group was throttled."""


@dataclass(slots=True, kw_only=True)
class CpuMeter:
    """Reads at ``start`` and ``stop``; costs a few file reads each.

    Args:
        pid: Top of the process tree that is ours.
        root: Where ``proc`` and ``sys`` are found.
        allowed: Gives the cores we may run on.
        own_cpu_s: Gives the CPU seconds a process tree has used.
        clock: Wall clock in seconds.
    """

    pid: int = field(default_factory=os.getpid)
    root: Path = Path("/")
    allowed: Callable[[], frozenset[int] | None] = affinity
    own_cpu_s: Callable[[int], float] = tree_cpu_s
    clock: Callable[[], float] = time.perf_counter
    _first: _Reading | None = None

    def start(self) -> None:
        """Begin a window."""
        self._first = self._read()

    def stop(self) -> float | None:
        """End the window.

        Returns:
            CPU cores' worth of time that others took from us; None without ``start``, for a window under 0.1 s,
            or where the system does not say.
        """
        first, last = self._first, self._read()
        self._first = None
        if first is None or last.clock_s - first.clock_s < _SHORTEST_S:
            return None
        taken = _taken_s(first, last)
        return None if taken is None else max(0.0, taken) / (last.clock_s - first.clock_s)

    def _read(self) -> _Reading:
        quota = cpu_quota(self.root)
        busy, stolen = _busy_s(self.root, self.allowed())
        return _Reading(
            clock_s=self.clock(),
            own_s=self.own_cpu_s(self.pid),
            busy_s=busy,
            stolen_s=stolen,
            delay_s=_delays_s(self.pid, self.root),
            group_s=None if quota is None else _group_s(quota),
            throttled=0 if quota is None else key_values(quota.directory / "cpu.stat").get("nr_throttled", 0),
        )


def _taken_s(first: _Reading, last: _Reading) -> float | None:
    own = last.own_s - first.own_s
    if last.throttled > first.throttled:
        return None if first.group_s is None or last.group_s is None else last.group_s - first.group_s - own
    if first.busy_s is None or last.busy_s is None or last.busy_s <= first.busy_s:
        return None  # not a single tick on any core: the numbers are made up, as in some sandboxes
    busy = last.busy_s - first.busy_s
    others = max(0.0, busy - own)
    if last.delay_s:
        others = min(others, sum(delay - first.delay_s.get(key, 0.0) for key, delay in last.delay_s.items()))
    # The hypervisor steals from whoever runs: our part of it is our part of the work.
    return others + (last.stolen_s - first.stolen_s) * min(1.0, own / busy)


def _busy_s(root: Path, allowed: frozenset[int] | None) -> tuple[float | None, float]:
    """CPU seconds used on the cores we may run on, and those stolen by the hypervisor."""
    text = read_text(root / "proc/stat")
    if text is None:
        return _busy_elsewhere_s(allowed)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    busy = stolen = 0
    seen = False
    for words in map(str.split, text.splitlines()):
        if not words or not words[0].startswith("cpu") or not words[0][3:].isdigit():
            continue
        if allowed is not None and int(words[0][3:]) not in allowed:
            continue
        seen = True
        user, nice, system, _idle, _iowait, irq, softirq, *rest = map(int, words[1:])
        busy += user + nice + system + irq + softirq
        stolen += rest[0] if rest else 0
    return (busy / ticks_per_s if seen else None), stolen / ticks_per_s


def _busy_elsewhere_s(allowed: frozenset[int] | None) -> tuple[float | None, float]:
    import psutil

    cores = psutil.cpu_times(percpu=True)
    mine = [times for number, times in enumerate(cores) if allowed is None or number in allowed]
    return sum(float(times.user + times.system + getattr(times, "nice", 0.0)) for times in mine), 0.0


def _delays_s(pid: int, root: Path) -> dict[tuple[int, str], float]:
    found = {}
    for each in tree_pids(pid, root=root):
        for path in (root / f"proc/{each}/task").glob("*/schedstat"):
            words = (read_text(path) or "").split()  # ns on a core, ns waiting for one, time slices
            if len(words) == 3:
                found[each, path.parent.name] = int(words[1]) / 1e9
    return found


def _group_s(quota: CpuQuota) -> float | None:
    if quota.version == 2:
        usage = key_values(quota.directory / "cpu.stat").get("usage_usec")
        return None if usage is None else usage / 1e6
    text = (read_text(quota.directory / "cpuacct.usage") or "").strip()
    return int(text) / 1e9 if text.isdigit() else None
