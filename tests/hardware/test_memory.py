from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from autotune.hardware.memory import oom_kill_count, open_file_limit, read_ram, shm_free_bytes

Machine = Callable[[Mapping[str, object]], Path]
GIB = 2**30
MEMINFO = f"MemTotal: {8 * GIB // 1024} kB\nMemFree: 5 kB\nMemAvailable: {6 * GIB // 1024} kB"


def test_the_machines_ram_is_read(machine: Machine) -> None:
    """Total and available RAM come from the machine where no group bounds them."""
    notes: list[str] = []
    assert read_ram(root=machine({"proc/meminfo": MEMINFO}), notes=notes) == (8 * GIB, 6 * GIB)
    assert notes == []


def test_a_containers_limit_bounds_ram(machine: Machine) -> None:
    """With ``memory.max`` of 1 GiB the RAM budget is 1 GiB, and it is said.

    Report: giampaolo/psutil#2100.
    """
    notes: list[str] = []
    files = {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": GIB, "sys/fs/cgroup/memory.current": GIB // 4}
    assert read_ram(root=machine(files), notes=notes) == (GIB, GIB - GIB // 4)
    assert "cgroup" in notes[0]


def test_a_limit_above_the_ram_changes_nothing(machine: Machine) -> None:
    """A group's limit larger than the machine does not raise the budget."""
    notes: list[str] = []
    root = machine({"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": 99 * GIB})
    assert read_ram(root=root, notes=notes) == (8 * GIB, 6 * GIB)
    assert notes == []


def test_ram_is_known_without_meminfo(tmp_path: Path) -> None:
    """Systems without ``/proc`` answer through psutil."""
    total, available = read_ram(root=tmp_path, notes=[])
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total


@pytest.mark.skipif(not hasattr(os, "statvfs"), reason="this platform has no statvfs")
def test_shared_memory_is_what_is_free_or_null(tmp_path: Path) -> None:
    """Without ``/dev/shm`` there is no bound; with it, the free bytes of that file system."""
    assert shm_free_bytes(tmp_path) is None
    (tmp_path / "dev/shm").mkdir(parents=True)
    assert (shm_free_bytes(tmp_path) or 0) > 0


def test_the_open_file_limit_is_the_soft_one() -> None:
    """The soft limit is what makes ``open`` fail."""
    resource = pytest.importorskip("resource")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert open_file_limit() == (None if soft == resource.RLIM_INFINITY else soft)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sys/fs/cgroup/memory.events": "low 0\noom 4\noom_kill 3", "proc/vmstat": "oom_kill 9"}, 3),
        (
            {
                "proc/self/cgroup": "4:memory:/a",
                "sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
            },
            2,
        ),
        ({"proc/vmstat": "nr_free_pages 1\noom_kill 9"}, 9),
        ({}, None),
    ],
)
def test_the_kernels_kills_are_counted(machine: Machine, files: Mapping[str, object], expected: int | None) -> None:
    """The group's own counter comes first, then the machine's, else null."""
    assert oom_kill_count(machine(files)) == expected
