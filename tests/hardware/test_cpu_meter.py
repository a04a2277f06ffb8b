from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from autotune.hardware import CpuMeter

Machine = Callable[[Mapping[str, object]], Path]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


class World:
    """A fake machine of four cores whose counters a test moves; each window lasts one second."""

    def __init__(self, machine: Machine, *, allowed: frozenset[int] | None = None, threads: int = 1) -> None:
        self.machine = machine
        self.root = machine({"proc/self/task/1/children": "", "proc/7/task/7/children": ""})
        self.busy = [0.0, 0.0, 0.0, 0.0]
        self.stolen = [0.0, 0.0, 0.0, 0.0]
        self.delay: float | None = 0.0
        self.threads = threads
        self.own = self.clock = 0.0
        self.quota: dict[str, object] = {}
        self.meter = CpuMeter(
            pid=7,
            root=self.root,
            allowed=lambda: allowed,
            own_cpu_s=lambda pid: self.own,
            clock=lambda: self.clock,
        )

    def write(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        lines = [
            f"cpu{number} {int(busy * ticks)} 0 0 {int(9e3)} 0 0 0 {int(stolen * ticks)} 0 0"
            for number, (busy, stolen) in enumerate(zip(self.busy, self.stolen, strict=True))
        ]
        files: dict[str, object] = {
            "proc/stat": "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 5"]),
            **self.quota,
        }
        if self.delay is not None:
            for thread in range(self.threads):
                files[f"proc/7/task/{7 + thread}/schedstat"] = f"5 {int(self.delay / self.threads * 1e9)} 3"
        self.machine(files)

    def window(self, change: Callable[[World], None], *, lasts_s: float = 1.0) -> float | None:
        self.write()
        self.meter.start()
        change(self)
        self.clock += lasts_s
        self.write()
        return self.meter.stop()


def test_our_own_work_is_not_others(machine: Machine) -> None:
    """Cores kept busy by our own tree count as undisturbed, also when our threads wait for each other."""

    def change(world: World) -> None:
        world.busy, world.own, world.delay = [1.0, 1.0, 0, 0], 2.0, 3.0

    assert World(machine).window(change) == 0


def test_others_that_make_us_wait_are_counted(machine: Machine) -> None:
    """Half a core's work of others, with our threads waiting as long, is half a core."""

    def change(world: World) -> None:
        world.busy, world.own, world.delay = [1.0, 1.0, 0, 0], 1.5, 0.9

    assert World(machine, threads=3).window(change) == pytest.approx(0.5, abs=0.03)


def test_others_that_never_meet_us_do_not_count(machine: Machine) -> None:
    """A busy host around an undisturbed process, as a container sees it, is no disturbance."""

    def change(world: World) -> None:
        world.busy, world.own, world.delay = [1.0, 1.0, 1.0, 1.0], 1.0, 0.01

    assert World(machine).window(change) == pytest.approx(0.01, abs=0.005)


def test_only_the_cores_we_may_run_on_are_watched(machine: Machine) -> None:
    """Others' work on cores outside of our mask is not ours to complain about."""

    def change(world: World) -> None:
        world.busy, world.own, world.delay = [1.0, 0.25, 1.0, 1.0], 1.0, 5.0

    assert World(machine, allowed=frozenset({0, 1})).window(change) == pytest.approx(0.25, abs=0.03)


def test_without_run_delay_the_cores_decide(machine: Machine) -> None:
    """Kernels without scheduler statistics still give others' work on our cores."""

    def change(world: World) -> None:
        world.busy, world.own = [1.0, 1.0, 0, 0], 1.2

    world = World(machine)
    world.delay = None
    assert world.window(change) == pytest.approx(0.8, abs=0.03)


def test_time_stolen_by_the_hypervisor_counts(machine: Machine) -> None:
    """Time that another virtual machine took from us is a disturbance."""

    def change(world: World) -> None:
        world.busy, world.own, world.stolen = [0.6, 0, 0, 0], 0.6, [0.4, 0, 0, 0]

    assert World(machine).window(change) == pytest.approx(0.4, abs=0.03)


def test_a_thread_born_in_the_window_counts(machine: Machine) -> None:
    """Loader threads that start within the window are watched as well."""

    def change(world: World) -> None:
        world.busy, world.own, world.delay, world.threads = [1.0, 1.0, 0, 0], 1.0, 0.8, 4

    assert World(machine).window(change) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(("group_s", "expected"), [(2.0, 0.0), (3.5, 1.5)])
def test_a_used_up_quota_is_others_only_as_far_as_they_share_it(
    machine: Machine, group_s: float, expected: float
) -> None:
    """When the quota ran out, waiting is its doing; who else used it is what counts."""
    stat = "usage_usec {0}\nnr_periods 10\nnr_throttled {1}\nthrottled_usec 1"

    def change(world: World) -> None:
        world.busy, world.own, world.delay = [1.0, 1.0, 1.0, 1.0], 2.0, 4.0
        world.quota["sys/fs/cgroup/cpu.stat"] = stat.format(int(group_s * 1e6), 5)

    world = World(machine)
    world.quota = {"sys/fs/cgroup/cpu.max": "200000 100000", "sys/fs/cgroup/cpu.stat": stat.format(0, 0)}
    assert world.window(change) == pytest.approx(expected, abs=0.03)


def test_made_up_counters_give_null(machine: Machine) -> None:
    """A sandbox whose counters stand still gives null, not 0."""
    assert World(machine).window(lambda world: None) is None


def test_a_window_too_short_for_the_counters_gives_null(machine: Machine) -> None:
    """Below 0.1 s the kernel's ticks are noise."""

    def change(world: World) -> None:
        world.busy, world.own = [1.0, 1.0, 0, 0], 1.0

    assert World(machine).window(change, lasts_s=0.05) is None


def test_stop_without_start_gives_null(machine: Machine) -> None:
    """A meter that was not started knows nothing, and can be started again after a stop."""
    world = World(machine)
    world.write()
    assert world.meter.stop() is None

    def change(world: World) -> None:
        world.busy, world.own = [1.0, 0, 0, 0], 1.0

    assert world.window(change) == 0
    assert world.meter.stop() is None


def test_this_machine_is_readable() -> None:
    """The meter works on the real counters of this process."""
    clock = iter([0.0, 1.0])
    meter = CpuMeter(clock=lambda: next(clock))
    meter.start()
    sum(range(5_000_000))
    others = meter.stop()
    assert others is None or others >= 0
