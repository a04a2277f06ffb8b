"""Counters of the kernel's out-of-memory kills, on recorded files."""

from __future__ import annotations

from pathlib import Path

from autotune.sandbox.kernel_kills import kernel_kills


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_version_2_counts_own_group(tmp_path: Path) -> None:
    """Version 2: the group's memory.events, whose other counters are not taken for it."""
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/fs/cgroup/user.slice/job/memory.events": "low 0\nhigh 9\nmax 8\noom 4\noom_kill 3\noom_group_kill 0\n",
            "proc/vmstat": "oom_kill 70\n",
        },
    )
    assert kernel_kills(root) == 3


def test_container_counts_at_the_mounts_top(tmp_path: Path) -> None:
    """In a container the group's path may not exist below the mount; its top is the group then."""
    root = _write(
        tmp_path,
        {"proc/self/cgroup": "0::/docker/1234\n", "sys/fs/cgroup/memory.events": "oom 1\noom_kill 2\n"},
    )
    assert kernel_kills(root) == 2


def test_version_1_counts_own_group(tmp_path: Path) -> None:
    """Version 1: memory.oom_control of the memory controller."""
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n1:name=systemd:/a\n0::/\n",
            "sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
        },
    )
    assert kernel_kills(root) == 5


def test_without_groups_the_system_counts(tmp_path: Path) -> None:
    """No control group with memory: the whole system's counter, else zero."""
    assert kernel_kills(tmp_path) == 0
    root = _write(tmp_path, {"proc/self/cgroup": "0::/\n", "proc/vmstat": "pgpgin 5\noom_kill 6\n"})
    assert kernel_kills(root) == 6
