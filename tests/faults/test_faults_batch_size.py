"""The search for the batch size itself: what it runs, where it ends, and what it returns."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune import Settings
from autotune.batch_size import find_largest
from autotune.hardware import Limits
from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe
from autotune.planner import CPU, Plan
from autotune.report.progress import Progress
from autotune.study import Study
from autotune.task import Task
from autotune.trial import Bench
from tests.faults.small_task import HOST, Net, full_above, largest, rows
from tests.planner.fake_machine import FakeMachine, candidates, hardware


def test_each_reported_size_is_the_size_that_ran() -> None:
    """Between one report and the next the model sees batches of that very size only, also after a failure.

    Report: Lightning-AI/pytorch-lightning#14361.
    """
    net = Net(full_above(37))
    seen: list[set[int]] = []

    def keep(event: Progress) -> None:
        if event.phase == "largest batch":
            seen.append(set(net.rows))
            net.rows.clear()

    result = largest(net, progress=keep)
    first, *others = [(one.size, ran) for one, ran in zip(result.evidence, seen, strict=True)]
    assert first[0] in first[1]  # the batch that described the task came before
    assert others == [(size, {size}) for size, _ in others]


def test_each_reported_size_ran_forward_and_backward() -> None:
    """Nothing that fits was reported without a gradient of its own.

    Report: Lightning-AI/pytorch-lightning#13851.
    """
    net = Net(full_above(37))
    gradients: list[int] = []
    net.layers[0].weight.register_hook(lambda gradient: gradients.append(net.rows[-1]))
    result = largest(net)
    for one in result.evidence:
        assert net.rows.count(one.size) >= 1
        assert gradients.count(one.size) >= one.fits * one.steps


def test_a_model_in_the_middle_of_its_training_is_searched_like_a_new_one() -> None:
    """Fifty steps with Adam and a schedule before: each size still runs, and the limit of 20 is found.

    Report: Lightning-AI/pytorch-lightning#21903.
    """
    net = Net(full_above(20))
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    for _ in range(50):
        torch.nn.functional.cross_entropy(net(torch.randn(16, 8)), torch.arange(16) % 2).backward()
        optimizer.step()
        schedule.step()
    net.rows.clear()
    result = largest(net, optimizer=optimizer)
    assert result.batch_size == 20
    assert {one.size for one in result.evidence} <= set(net.rows)
    assert schedule.last_epoch == 50


def test_the_batch_is_split_from_the_whole_each_time() -> None:
    """64 rows do not fit, 10 do: micro-batches of 8 with 8 accumulation steps, not of 1.

    Report: mosaicml/composer#1081.
    """

    def fate(asked: Probe) -> Outcome | None:
        if (asked.settings.batch_size or 0) <= 10:
            return None
        return OutOfMemory(kind=asked.kind, settings=asked.settings, where="allocator", message="CUDA out of memory.")

    machine = FakeMachine(lambda settings: 100.0, fate=fate)
    plan = Plan(
        candidates=candidates(Settings(batch_size=64, num_threads=2), locked=True, max_effective_batch_size=64),
        hardware=hardware(),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=60.0,
        started_s=0.0,
    )
    plan.search()
    baseline = plan.candidates.baseline
    assert (baseline.batch_size, baseline.gradient_accumulation_steps) == (8, 8)
    assert largest(Net(full_above(10)), settings=Settings(batch_size=64)).batch_size == 10


def test_what_workers_load_ahead_is_bounded_by_ram() -> None:
    """Rows of 1 MB and 256 MB of RAM: batch times workers times prefetch stays within the stated half.

    Report: Lightning-AI/pytorch-lightning#11295.
    """
    facts: Any = SimpleNamespace(**{**vars(candidates().facts), "sample_bytes": 10**6, "samples": 10**6})
    limits = Limits(ram_bytes=256 * 10**6, shm_bytes=None, open_files=None)
    space = candidates(Settings(batch_size=16), facts=facts, limits=limits, max_effective_batch_size=10**6)
    admitted = []
    for size, workers, prefetch in itertools.product((16, 32, 64, 128), (1, 2, 4), (2, 4, 8)):
        settings = Settings(batch_size=size).replace(num_workers=workers, prefetch_factor=prefetch)
        refusal = space.refusal(settings)
        if refusal is None:
            admitted.append(size * workers * prefetch * 10**6)
        else:
            assert "would fill the memory" in refusal
    assert 0 < max(admitted) <= 128 * 10**6


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tiny_data_and_steps_without_duration_end_without_a_division_by_zero(count: int) -> None:
    """One, two and three samples, and a clock that gives the same time twice.

    Reports: ludwig-ai/ludwig#3481, ludwig-ai/ludwig#2034.
    """
    ticks = itertools.count()
    task = Task(Net(), rows(count), loss_fn=torch.nn.functional.cross_entropy)
    bench = Bench(task, HOST, Limits.of(HOST), clock=lambda: next(ticks) // 2 * 0.01)
    bench.describe()
    with contextlib.closing(bench):
        for kind in ("joint", "compute", "loader"):
            outcome = bench.run(Probe(kind=kind, settings=Settings(batch_size=count), window_s=0.02))
            assert isinstance(outcome, Measured), outcome
            assert outcome.samples_per_s >= 0


@pytest.mark.parametrize("cap", [1, 2, 3, 100])
def test_steps_that_take_no_time_at_all_are_sizes_that_ran(cap: int) -> None:
    """Zero seconds a step: no rate, no cliff, and the cap is what bounds the size.

    Report: ludwig-ai/ludwig#3481.
    """

    def run(asked: Probe) -> Outcome:
        size = asked.settings.batch_size or 0
        chunks = (Chunk(size, 0.0),)
        return Measured(kind="compute", settings=asked.settings, chunks=chunks, largest_batch_rows=size)

    found = find_largest(run, Settings(), cap=cap, cap_reason="the cap", memory_margin=0.0, clock=lambda: 0.0)
    assert (found.batch_size, found.reason) == (cap, "the cap")
