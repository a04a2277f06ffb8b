"""The plan and the race on machines that fail at random, with a clock that passes only while they work."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from autotune.errors import DoesNotFitError, TaskError
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.planner import CPU, GPU, Plan
from autotune.planner.found import Found
from autotune.race import race
from autotune.settings import Settings
from autotune.study import Study
from tests.chaos.conftest import Figures
from tests.planner.fake_machine import FakeMachine, candidates, hardware

_RUNS = 400
_BASELINE = Settings(batch_size=32, num_threads=2)


def _rejected(probe: Probe) -> Outcome:
    return Rejected(kind=probe.kind, settings=probe.settings, phase="step", reason="made on purpose")


def _out_of_memory(probe: Probe) -> Outcome:
    return OutOfMemory(kind=probe.kind, settings=probe.settings, where="killed", message="made on purpose")


def _crashed(probe: Probe) -> Outcome:
    return Crashed(kind=probe.kind, settings=probe.settings, exit_code=-11)


def _nothing(probe: Probe) -> Outcome:
    return Measured(kind=probe.kind, settings=probe.settings, chunks=())


_FAILURES: dict[str, Callable[[Probe], Outcome]] = {
    "rejected": _rejected,
    "out of memory": _out_of_memory,
    "crashed": _crashed,
    "measured nothing": _nothing,
}


class Unreliable(FakeMachine):
    """Fails a share of all probes at random; a hanging one takes all the time it is given."""

    def __init__(self, seed: int, share: float, figures: Figures) -> None:
        self.random = random.Random(seed)
        speeds = {name: self.random.uniform(0.5, 2.0) for name in ("workers", "batch", "precision", "threads")}
        super().__init__(lambda settings: _rate(settings, speeds), trial_s=self.random.choice((0.5, 2.0, 8.0)))
        self.share, self.figures = share, figures
        self.answers: list[Outcome] = []

    def run(self, probe: Probe) -> Outcome:
        answer = self._failed(probe) if self.random.random() < self.share else super().run(probe)
        self.answers.append(answer)
        return answer

    def _failed(self, probe: Probe) -> Outcome:
        self.probes.append(probe)
        kind = self.random.choice(["hangs", "slow", *_FAILURES])
        self.figures.count(kind)
        if kind == "slow":  # up to its deadline
            self.now += self.random.uniform(0, max(0.0, probe.deadline_s - self.trial_s))
            return super().run(probe)
        if kind == "hangs":
            self.now += probe.deadline_s
            return TimedOut(kind=probe.kind, settings=probe.settings, deadline_s=probe.deadline_s)
        self.now += min(self.trial_s, probe.deadline_s)
        return _FAILURES[kind](probe)


def _rate(settings: Settings, speeds: dict[str, float]) -> float:
    rate = 100.0 * speeds["workers"] ** min(2, settings.num_workers) * speeds["batch"] ** (settings.batch_size != 32)
    return float(rate * speeds["precision"] ** (settings.precision != "fp32") * (1 + (settings.num_threads or 2) / 10))


def _search(machine: Unreliable, seed: int, study: Study) -> Found | None:
    """What the plan found; None where the baseline itself failed, which it says by an exception."""
    accelerated = seed % 2 == 0
    accelerator = type("Accelerator", (), {"memory_bytes": 2**34})() if accelerated else None
    arguments: dict[str, Any] = {
        "candidates": candidates(_BASELINE),
        "hardware": hardware(1 + seed % 8, accelerator),
        "pace": GPU if accelerated else CPU,
        "study": study,
        "run": machine.run,
        "clock": machine.clock,
        "budget_s": (10.0, 30.0, 120.0, 600.0)[seed % 4],
        "started_s": 0.0,
    }
    plan = Plan(**arguments)
    try:
        return plan.search()
    except (TaskError, DoesNotFitError):
        assert not isinstance(machine.answers[-1], Measured)
        return None
    finally:
        assert machine.now <= 1.1 * plan.budget_s + 1.0  # the shortest deadline there is


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_a_plan_among_random_failures_ends_in_time_with_what_was_measured(share: float, figures: Figures) -> None:
    """Every outcome is in the study; a finalist's figures are those of its own, complete trial."""
    for seed in range(_RUNS):
        machine, study = Unreliable(seed, share, figures), Study()
        found = _search(machine, seed, study)
        assert study.outcomes == machine.answers
        joint = [one for one in machine.answers if isinstance(one, Measured) and one.kind == "joint" and not one.cut]
        for one in () if found is None else found.finalists:
            assert one in joint
            assert one.samples_per_s > 0
        if found is not None and found.baseline is not None:
            assert found.baseline in joint
        figures.survived = figures.injected.copy()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_a_race_among_random_failures_ends_in_time_and_never_crowns_a_slower_one(
    share: float, figures: Figures
) -> None:
    """A setting wins only where it is truly faster by the margin, whatever else failed."""
    others = [Settings(batch_size=32, num_threads=2, num_workers=1, prefetch_factor=2), Settings(batch_size=64)]
    wins = 0
    for seed in range(_RUNS):
        machine = Unreliable(seed, share, figures)
        results = race(_BASELINE, others, run=machine.run, budget_s=40.0, margin=0.05, clock=machine.clock)
        assert machine.now <= 1.1 * 40.0 + 5.0 * len(results) + 5.0  # the shortest deadline of a lap
        for one in results:
            assert not one.wins or machine.rate(one.candidate) > 1.05 * machine.rate(_BASELINE)
            assert one.failed is None or not one.wins
            wins += one.wins
        figures.survived = figures.injected.copy()
    assert wins or share > 0.5
