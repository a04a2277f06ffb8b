"""Runs the plan on real trials in this process, for workloads whose optimum is known on paper."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autotune.hardware import Hardware, Limits
from autotune.measurement import Outcome, Probe
from autotune.planner import CPU, Found, Plan
from autotune.race import race
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.study import Study
from autotune.task import Task
from autotune.trial import Bench

QUICK = dataclasses.replace(CPU, window_s=0.3, baseline_window_s=0.4, part_window_s=0.2, idle_moves=2)
"""Sleeps are exact, so short windows do."""


class Sleeper(nn.Module):
    """One layer, and a step that takes ``cost_s(rows)`` seconds; counts its forward passes."""

    def __init__(self, cost_s: Callable[[int], float] = lambda rows: 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.cost_s = cost_s
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        time.sleep(self.cost_s(len(x)))
        return self.layer(x)


def answer(
    model: Callable[[], nn.Module],
    dataset: Any,
    *,
    budget_s: float = 90.0,
    cores: int = 2,
    space: Space | None = None,
    rules: BatchRules | None = None,
    race_s: float | None = None,
    **hardware_facts: Any,
) -> tuple[Settings, list[Outcome], Found]:
    """The settings that would be returned, all trials, and what the search left.

    The budget is far more than a quiet machine needs: the plan stops by itself. With ``race_s`` they are raced as in
    a real call; without, a gain above the margin stands for a won race.
    """
    task = Task(model, dataset, loss_fn=nn.CrossEntropyLoss(), device="cpu")
    found = {"cpu_bf16_native": False, "has_compiler": False, "accelerator": None, **hardware_facts}
    hardware = dataclasses.replace(Hardware.detect(), cores=cores, **found)
    bench = Bench(task, hardware, Limits.of(hardware), fresh=lambda: task)
    outcomes: list[Outcome] = []

    def run(probe: Probe) -> Outcome:
        began = time.perf_counter()
        outcome = dataclasses.replace(bench.run(probe), cost_s=time.perf_counter() - began)
        outcomes.append(outcome)
        return outcome

    try:
        facts = bench.describe()
        limits = Limits.of(hardware)
        candidates = Candidates.of(facts, hardware, limits, rules or BatchRules(), space or Space())
        plan = Plan(
            candidates=candidates,
            hardware=hardware,
            pace=QUICK,
            study=Study(),
            run=run,
            clock=time.perf_counter,
            budget_s=budget_s,
            started_s=time.perf_counter(),
        )
        result = plan.search()
        best = _shipped(result, plan.candidates.baseline)
        if race_s is not None and best != plan.candidates.baseline:
            results = race(plan.candidates.baseline, [best], run=run, budget_s=race_s, margin=QUICK.margin)
            best = best if results[0].wins else plan.candidates.baseline
    finally:
        bench.close()
    return best, outcomes, result


def _shipped(found: Found, baseline: Settings) -> Settings:
    """As the race would decide without noise: a gain below the margin ships nothing."""
    if not found.finalists or found.baseline is None:
        return baseline
    best = found.finalists[0]
    return best.settings if best.samples_per_s > (1 + QUICK.margin) * found.baseline.samples_per_s else baseline
