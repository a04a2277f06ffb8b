from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.hardware.cgroup import cgroup_levels, cpu_quota, memory_limit

Machine = Callable[[Mapping[str, object]], Path]
GIB = 2**30


def test_a_bare_group_root_is_enough(machine: Machine) -> None:
    """A quota is found where only the mount point exists, without anything in proc."""
    root = machine({"sys/fs/cgroup/cpu.max": "150000 100000"})
    quota = cpu_quota(root)
    assert quota is not None
    assert quota.cores == 1.5
    assert quota.version == 2


@pytest.mark.parametrize("text", ["max 100000", "max", "", "-1 100000", "100000 0", "what"])
def test_no_quota_where_none_is_set(machine: Machine, text: str) -> None:
    """``max`` and damaged files are no quota."""
    assert cpu_quota(machine({"sys/fs/cgroup/cpu.max": text})) is None


def test_a_machine_without_groups_has_no_bounds(tmp_path: Path) -> None:
    """Nothing is bounded where there are no control groups (macOS, Windows)."""
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None


def test_version_2_follows_the_nested_path_of_the_process(machine: Machine) -> None:
    """The quota of the process's own nested group is found, not only the mount's."""
    root = machine(
        {
            "proc/self/cgroup": "0::/user.slice/job.scope",
            "sys/fs/cgroup/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000",
            "sys/fs/cgroup/user.slice/job.scope/cpu.max": "300000 100000",
            "sys/fs/cgroup/other.slice/cpu.max": "100000 100000",
        }
    )
    quota = cpu_quota(root)
    assert quota is not None
    assert (quota.cores, quota.directory) == (3.0, root / "sys/fs/cgroup/user.slice/job.scope")


def test_the_tightest_of_all_ancestors_counts(machine: Machine) -> None:
    """A parent's tighter quota and memory limit bind although the own group has looser ones."""
    root = machine(
        {
            "proc/self/cgroup": "0::/pod/box",
            "sys/fs/cgroup/pod/cpu.max": "200000 100000",
            "sys/fs/cgroup/pod/box/cpu.max": "800000 100000",
            "sys/fs/cgroup/pod/memory.max": 4 * GIB,
            "sys/fs/cgroup/pod/memory.current": 3 * GIB,
            "sys/fs/cgroup/pod/box/memory.max": 8 * GIB,
            "sys/fs/cgroup/pod/box/memory.current": GIB,
        }
    )
    quota, limit = cpu_quota(root), memory_limit(root)
    assert quota is not None
    assert limit is not None
    assert quota.cores == 2.0
    assert (limit.limit_bytes, limit.available_bytes) == (4 * GIB, GIB)


def test_version_1_is_read_through_its_mount_and_path(machine: Machine) -> None:
    """Version 1 with shared controllers, a nested path and a mount point from mountinfo."""
    root = machine(
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/jobs/7\n4:memory:/jobs/7\n0::/",
            "proc/self/mountinfo": (
                "32 31 0:29 / /cg/cpu\\040acct rw - cgroup cgroup rw,cpu,cpuacct\n"
                "33 31 0:30 / /cg/memory rw - cgroup cgroup rw,memory"
            ),
            "cg/cpu acct/jobs/7/cpu.cfs_quota_us": 250000,
            "cg/cpu acct/jobs/7/cpu.cfs_period_us": 100000,
            "cg/memory/jobs/7/memory.limit_in_bytes": 2 * GIB,
            "cg/memory/jobs/7/memory.usage_in_bytes": GIB,
            "cg/memory/jobs/7/memory.stat": f"total_inactive_file {GIB // 2}\ninactive_file 5",
            "cg/memory/memory.limit_in_bytes": 9223372036854771712,
        }
    )
    quota, limit = cpu_quota(root), memory_limit(root)
    assert quota is not None
    assert limit is not None
    assert (quota.cores, quota.version) == (2.5, 1)
    assert (limit.limit_bytes, limit.available_bytes) == (2 * GIB, GIB + GIB // 2)


def test_version_1_works_at_its_usual_place(machine: Machine) -> None:
    """Version 1 without mountinfo is found under ``/sys/fs/cgroup/<controllers>``."""
    root = machine(
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": 50000,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": 100000,
        }
    )
    quota = cpu_quota(root)
    assert quota is not None
    assert quota.cores == 0.5


def test_version_1_unlimited_is_no_limit(machine: Machine) -> None:
    """Quota -1 and the huge default memory limit of version 1 mean "none"."""
    root = machine(
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
        }
    )
    assert cpu_quota(root) is None
    assert memory_limit(root) is None


def test_a_container_that_sees_its_own_part_of_the_tree(machine: Machine) -> None:
    """The path in proc names the host's tree, the mount starts at the container: its top is the own group."""
    root = machine(
        {
            "proc/self/cgroup": "3:memory:/docker/abc/inner",
            "proc/self/mountinfo": "33 31 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": GIB,
            "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": GIB // 2,
        }
    )
    limit = memory_limit(root)
    assert limit is not None
    assert limit.limit_bytes == GIB // 2


@pytest.mark.parametrize("path", ["/../../elsewhere", "/kubepods/unknown"])
def test_a_path_outside_of_the_mount_falls_back_to_its_top(machine: Machine, path: str) -> None:
    """A process moved out of its namespace still gets the limit of what it can see."""
    root = machine(
        {
            "proc/self/cgroup": f"0::{path}",
            "proc/self/mountinfo": "33 31 0:30 /kubepods/mine /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "sys/fs/cgroup/memory.max": GIB,
        }
    )
    limit = memory_limit(root)
    assert limit is not None
    assert limit.limit_bytes == GIB


def test_a_sibling_with_our_mounts_name_as_prefix_is_not_ours(machine: Machine) -> None:
    """``/pod10`` does not lie inside a mount of ``/pod1``."""
    root = machine(
        {
            "proc/self/cgroup": "0::/pod10",
            "proc/self/mountinfo": "33 31 0:30 /pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "sys/fs/cgroup/0/cpu.max": "100000 100000",
        }
    )
    assert cgroup_levels("cpu", root) == (2, [root / "sys/fs/cgroup"])


def test_a_mixed_machine_reads_version_1_for_its_controllers(machine: Machine) -> None:
    """With both versions mounted, a controller that version 1 holds is read there."""
    root = machine(
        {
            "proc/self/cgroup": "4:memory:/a\n0::/b",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": GIB,
            "sys/fs/cgroup/unified/b/cpu.max": "100000 100000",
            "proc/self/mountinfo": "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        }
    )
    limit, quota = memory_limit(root), cpu_quota(root)
    assert limit is not None
    assert quota is not None
    assert (limit.limit_bytes, quota.cores) == (GIB, 1.0)


def test_page_cache_that_can_be_dropped_counts_as_room(machine: Machine) -> None:
    """Room is the limit less what is held, inactive file pages not counted as held."""
    root = machine(
        {
            "sys/fs/cgroup/memory.max": 4 * GIB,
            "sys/fs/cgroup/memory.current": 3 * GIB,
            "sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}",
        }
    )
    limit = memory_limit(root)
    assert limit is not None
    assert limit.available_bytes == 3 * GIB


def test_a_soft_memory_limit_binds(machine: Machine) -> None:
    """Above ``memory.high`` the kernel slows a group down to a crawl, so it is the limit."""
    root = machine({"sys/fs/cgroup/memory.max": 4 * GIB, "sys/fs/cgroup/memory.high": 3 * GIB})
    limit = memory_limit(root)
    assert limit is not None
    assert limit.limit_bytes == 3 * GIB


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet=" 0123456789:,./-maxcpu\n\\", max_size=40))
def test_damaged_kernel_files_never_raise(machine: Machine, text: str) -> None:
    """Whatever the files hold, reading them ends with a bound or none."""
    names = ("proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup/cpu.max", "sys/fs/cgroup/memory.max")
    root = machine(dict.fromkeys(names, text))
    cpu_quota(root)
    memory_limit(root)
