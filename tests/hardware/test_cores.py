from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from autotune.hardware.cores import affinity, read_cpu, usable_cores

Machine = Callable[[Mapping[str, object]], Path]


def cores(
    root: Path, *, host: int = 24, allowed: int = 24, env: Mapping[str, str] | None = None
) -> tuple[int, str, list[str]]:
    notes: list[str] = []
    count, reason = usable_cores(root=root, env=env or {}, allowed=frozenset(range(allowed)), host=host, notes=notes)
    return count, reason, notes


def test_an_unbounded_process_has_all_cores(tmp_path: Path) -> None:
    """Without any bound all cores are used and there is nothing to tell."""
    assert cores(tmp_path) == (24, "all of the machine's", [])


def test_the_affinity_mask_bounds_and_is_named(tmp_path: Path) -> None:
    """One allowed core of 24 is one core, and the note names the mask.

    Report: pytorch/pytorch#101850.
    """
    count, reason, notes = cores(tmp_path, allowed=1)
    assert count == 1
    assert "affinity" in reason
    assert notes == ["1 of 24 CPU cores can be used: the affinity mask allows 1 of 24."]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform has no affinity to set")
def test_the_real_mask_of_this_process_is_read() -> None:
    """Narrowing the mask of this process is seen at once.

    Reports: galilai-group/stable-pretraining#24, pytorch/pytorch#101850.
    """
    before = os.sched_getaffinity(0)
    one = {min(before)}
    os.sched_setaffinity(0, one)
    try:
        assert affinity() == one
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("quota", "expected"), [("150000 100000", 2), ("100000 100000", 1), ("10000 100000", 1), ("390000 100000", 4)]
)
def test_a_quota_in_the_group_bounds(machine: Machine, quota: str, expected: int) -> None:
    """A container's CPU quota, invisible in the mask, gives the nearest whole number of cores and at least one.

    Report: coreutils/coreutils#108.
    """
    count, reason, _ = cores(machine({"sys/fs/cgroup/cpu.max": quota}))
    assert count == expected
    assert "quota" in reason


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"SLURM_CPUS_PER_TASK": "4"}, 4),
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"}, 4),
        ({"SLURM_CPUS_PER_TASK": "48"}, 24),
    ],
)
def test_the_batch_schedulers_share_bounds(tmp_path: Path, env: dict[str, str], expected: int) -> None:
    """SLURM's share is obeyed, the smaller of the task's and the node's, and never raises the number."""
    assert cores(tmp_path, env=env)[0] == expected


@pytest.mark.parametrize("value", ["many", "0", "-2", "4(x2)"])
def test_a_malformed_share_is_ignored_and_said(tmp_path: Path, value: str) -> None:
    """A share that is no number changes nothing, with a note."""
    count, _, notes = cores(tmp_path, env={"SLURM_CPUS_PER_TASK": value})
    assert count == 24
    assert notes == [f"SLURM_CPUS_PER_TASK={value!r} is no number of cores and is ignored."]


def test_the_tightest_bound_gives_the_reason(machine: Machine) -> None:
    """Of mask, quota and share the smallest decides and is the one named."""
    root = machine({"sys/fs/cgroup/cpu.max": "600000 100000"})
    count, reason, _ = cores(root, allowed=8, env={"SLURM_CPUS_PER_TASK": "7"})
    assert (count, "quota" in reason) == (6, True)


def cpuinfo(flags: str, *, threads_per_core: int = 1, cores: int = 4) -> str:
    block = "processor\t: {0}\nmodel name\t: Fast CPU\nphysical id\t: 0\ncore id\t\t: {1}\nflags\t\t: {2}\n"
    return "\n".join(block.format(number, number // threads_per_core, flags) for number in range(cores))


@pytest.mark.parametrize(
    ("flags", "native"),
    [("fpu avx2", False), ("fpu avx512f avx512_bf16", False), ("fpu avx512_bf16 amx_bf16 amx_tile", True)],
)
def test_bf16_is_native_on_x86_with_amx_only(machine: Machine, flags: str, native: bool) -> None:
    """AVX-512's bf16 instructions alone do not count."""
    cpu = read_cpu(root=machine({"proc/cpuinfo": cpuinfo(flags)}), allowed=None, notes=[])
    assert (cpu.model, cpu.bf16_native) == ("Fast CPU", native)


def test_bf16_is_native_on_arm_with_the_extension(machine: Machine) -> None:
    """ARM's feature list is read, and the part number stands for the missing model name."""
    text = "processor\t: 0\nFeatures\t: fp asimd bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    notes: list[str] = []
    cpu = read_cpu(root=machine({"proc/cpuinfo": text}), allowed=None, notes=notes)
    assert cpu.bf16_native
    assert "0xd40" in cpu.model
    assert (cpu.physical_cores, notes) == (None, [])


def test_physical_cores_are_those_behind_the_allowed_ones(machine: Machine) -> None:
    """Two threads per core count once, and cores outside the mask do not count."""
    root = machine({"proc/cpuinfo": cpuinfo("fpu", threads_per_core=2, cores=8)})
    assert read_cpu(root=root, allowed=None, notes=[]).physical_cores == 4
    assert read_cpu(root=root, allowed=frozenset({0, 1, 2}), notes=[]).physical_cores == 2


def test_a_system_without_cpuinfo_says_what_is_unknown(tmp_path: Path) -> None:
    """Elsewhere bf16 is taken as not native, and the note says so."""
    notes: list[str] = []
    cpu = read_cpu(root=tmp_path, allowed=None, notes=notes)
    assert not cpu.bf16_native
    assert len(notes) == 1
    assert "bf16" in notes[0]
