"""Search and race together end within 1.1 times the time budget, whatever the machine does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from autotune.api.run import Run
from autotune.measurement import Outcome, Probe, TimedOut
from autotune.planner import CPU, GPU, Plan
from autotune.settings import Settings
from autotune.study import Study
from tests.planner.fake_machine import FakeMachine, candidates, hardware

_START_S = 3.0
_RESPAWN_S = 3.5  # a new child after one was killed: no trial is charged for it


class SlowMachine(FakeMachine):
    """Takes ``seconds(probe)`` for a probe, kills what passes its deadline, and needs a new process after that."""

    def __init__(self, seconds: Callable[[Probe], float], **options: Any) -> None:
        super().__init__(_rate, wait_share=0.2, **options)
        self.seconds = seconds
        self.dead = False
        self.built: set[Settings] = set()

    def run(self, probe: Probe) -> Outcome:
        if self.dead:
            self.now += _RESPAWN_S
            self.built.clear()
        self.dead = False
        needed_s = self._needed_s(probe)
        if needed_s > probe.deadline_s:
            self.probes.append(probe)
            self.now += probe.deadline_s
            self.dead = True
            return TimedOut(
                kind=probe.kind, settings=probe.settings, deadline_s=probe.deadline_s, cost_s=probe.deadline_s
            )
        self.trial_s = needed_s
        return super().run(probe)

    def _needed_s(self, probe: Probe) -> float:
        if probe.kind == "lap" and probe.settings in self.built:
            return probe.window_s
        self.built.add(probe.settings)
        return self.seconds(probe)


def _rate(settings: Settings) -> float:
    return 100.0 * (1 + min(settings.num_workers, 2)) * (2.0 if settings.compile_mode else 1.0)


def _compiles(probe: Probe) -> float:
    return 70.0 if probe.settings.compile_mode else 2.0


def _hangs_with_workers(probe: Probe) -> float:
    return 1e9 if probe.settings.num_workers else 1.5


def _hangs_larger(probe: Probe) -> float:
    return 1e9 if (probe.settings.batch_size or 0) > 32 else 2.5


def _uneven(probe: Probe) -> float:
    chance = random.Random(repr((probe.kind, probe.settings)))
    return chance.choice((0.5, 1.0, 2.0, 8.0, 30.0, 1e9))


def _of(seconds: float) -> Callable[[Probe], float]:
    return lambda probe: seconds


_MACHINES: dict[str, Callable[[Probe], float]] = {
    "trials of 0.4 s": _of(0.4),
    "trials of 2 s": _of(2.0),
    "trials of 8 s": _of(8.0),
    "trials of 25 s": _of(25.0),
    "trials of 5 min": _of(300.0),
    "compiles of 70 s": _compiles,
    "workers hang": _hangs_with_workers,
    "larger batches hang": _hangs_larger,
    "anything may hang or be slow": _uneven,
}


class _Silent:
    def say(self, *_: Any) -> None: ...
    def lap(self, _: Any) -> None: ...


@pytest.mark.parametrize("accelerator", [False, True], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("budget_s", [5.0, 15.0, 30.0, 60.0, 120.0])
@pytest.mark.parametrize("kind", list(_MACHINES))
def test_search_and_race_keep_the_budget(kind: str, budget_s: float, accelerator: bool) -> None:
    """Start, trials, kills, new processes and race laps together; what is proven until then is returned."""
    machine = SlowMachine(_MACHINES[kind])
    machine.now = _START_S
    values = {**candidates().values, "compile_mode": ("default",), "compile_scope": ("blocks",)}
    device: Any = _Device() if accelerator else None
    plan = Plan(
        candidates=candidates(values=values),
        hardware=hardware(4, accelerator=device),
        pace=GPU if accelerator else CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=budget_s,
        started_s=0.0,
    )
    run = Run(plan=plan, run=machine.run, sandbox=machine, study=plan.study, narrator=_Silent(), pace=plan.pace)  # type: ignore[arg-type]
    run.go()
    assert machine.now <= 1.1 * budget_s
    for race in run.races:
        assert not race.wins or len(race.candidate_samples_per_s) >= plan.pace.race_rounds


class _Device:
    type, memory_bytes, capability = "cuda", 2**36, (8, 0)


@pytest.mark.parametrize("budget_s", [15.0, 30.0, 60.0, 120.0])
def test_quick_trials_leave_time_to_prove_a_gain(budget_s: float) -> None:
    """The budget is not kept by doing nothing."""
    machine = SlowMachine(_of(0.7))
    machine.now = _START_S
    plan = Plan(
        candidates=candidates(),
        hardware=hardware(),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=budget_s,
        started_s=0.0,
    )
    run = Run(plan=plan, run=machine.run, sandbox=machine, study=plan.study, narrator=_Silent(), pace=CPU)  # type: ignore[arg-type]
    run.go()
    assert any(race.wins for race in run.races)
