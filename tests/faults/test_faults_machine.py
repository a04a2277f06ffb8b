"""What the machine says about itself is believed as far as it holds for this process."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any

import pytest

from autotune.hardware import Hardware
from autotune.measurement import Measured, Probe
from autotune.planner import CPU, Plan
from autotune.settings import Settings
from autotune.study import Study
from tests.faults.small_task import Net, bench, rows
from tests.planner.fake_machine import FakeMachine, candidates, hardware


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks on this system")
def test_one_allowed_core_gets_one_worker_at_most() -> None:
    """However many cores the machine has: no trial has two workers, and torch does not warn of too many.

    Reports: galilai-group/stable-pretraining#24, pytorch/pytorch#101850.
    """
    mask = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mask)})
    try:
        found = Hardware.detect(device="cpu")
        assert found.cores == 1
        most = _most_workers(found.cores)
        with contextlib.closing(bench(Net(), rows(256))) as one, warnings.catch_warnings():
            warnings.simplefilter("error")
            outcome = one.run(Probe(kind="joint", settings=Settings().replace(num_workers=most), window_s=0.0))
        assert isinstance(outcome, Measured), outcome
    finally:
        os.sched_setaffinity(0, mask)
    assert most == 1
    if len(mask) > 1:
        assert "affinity" in found.cores_reason


def _most_workers(cores: int) -> int:
    """The most workers that a search tries in which each worker pays."""
    machine = FakeMachine(lambda settings: 100.0 * (1 + settings.num_workers))
    plan = Plan(
        candidates=candidates(),
        hardware=hardware(cores),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=120.0,
        started_s=0.0,
    )
    plan.search()
    return max(asked.settings.num_workers for asked in machine.probes)


@pytest.mark.parametrize("cores", [1, 2, 4, 24])
def test_workers_are_never_more_than_the_cores_that_may_be_used(cores: int) -> None:
    """A quota of two cores on a machine of 24 leaves two workers.

    Reports: coreutils/coreutils#108, galilai-group/stable-pretraining#24.
    """
    assert 1 <= _most_workers(cores) <= cores


def test_memory_that_spills_into_the_host_is_a_ceiling() -> None:
    """Steps fifty times longer above 32 rows, and no error: 32 rows at most.

    Reports: microsoft/WSL#11050, derrian-distro/LoRA_Easy_Training_Scripts#267.
    """
    from autotune.batch_size import find_largest
    from autotune.measurement import Chunk, Outcome

    def run(asked: Probe) -> Outcome:
        size: Any = asked.settings.batch_size
        chunk = Chunk(size, 0.04 * size * (50 if size > 32 else 1))
        return Measured(kind="compute", settings=asked.settings, chunks=(chunk,) * 2, largest_batch_rows=size)

    found = find_largest(run, Settings(), cap=4096, cap_reason="the cap", memory_margin=0.0, clock=lambda: 0.0)
    assert found.batch_size == 32
    assert "swapped" in found.reason
