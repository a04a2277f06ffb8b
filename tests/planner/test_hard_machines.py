"""Machines on which a plan could lose its way: gains out of reach, spoilt numbers, hangs, known limits."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.api.run import Run
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe
from autotune.planner import CPU, GPU, Plan
from autotune.settings import Settings
from autotune.study import Study
from tests.planner.fake_machine import FakeMachine, candidates, hardware
from tests.test_budget import SlowMachine

_VALUES = {
    "precision": ("bf16-mixed",),
    "channels_last": (True,),
    "pin_memory": (True,),
    "optimizer_implementation": ("fused",),
}


def _plan(machine: FakeMachine, *, on_device: bool = False, budget_s: float = 120.0, **more: Any) -> Plan:
    device = SimpleNamespace(memory_bytes=None, type="cuda") if on_device else None
    arguments: dict[str, Any] = {
        "candidates": candidates(values=_VALUES),
        "hardware": hardware(8 if on_device else 2, device),
        "pace": GPU if on_device else CPU,
        "study": Study(),
        "run": machine.run,
        "clock": machine.clock,
        "budget_s": budget_s,
        "started_s": machine.clock(),
    }
    return Plan(**{**arguments, **more})


def test_a_batch_that_pays_but_leaves_no_margin_is_left_behind() -> None:
    """Each doubling pays, 32 MiB a row, half of 8 GiB allowed: the plan goes on to other moves and ends."""
    machine = FakeMachine(lambda settings: 10.0 * (settings.batch_size or 1))

    def run(probe: Probe) -> Outcome:
        outcome = machine.run(probe)
        if not isinstance(outcome, Measured) or outcome.kind != "joint":
            return outcome
        return dataclasses.replace(outcome, peak_ram_bytes=(probe.settings.batch_size or 0) * 2**25)

    found = _plan(machine, run=run, memory_margin=0.5).search()
    assert 64 <= (found.finalists[0].settings.batch_size or 0) <= 128
    assert {probe.settings.num_workers for probe in machine.probes} > {0}
    assert any(probe.settings.channels_last for probe in machine.probes)


def _spoilt(probe: Probe) -> Outcome | None:
    if probe.kind != "numerics":
        return None
    error = 0.5 if probe.settings.precision != "fp32" else 0.0
    return Measured(kind="numerics", settings=probe.settings, chunks=(), first_loss=1.0, loss_error=error)


@pytest.mark.parametrize("on_device", [False, True], ids=["cpu", "device"])
def test_a_precision_that_spoils_the_numbers_takes_no_other_gain_with_it(on_device: bool) -> None:
    """bf16 would be twice as fast and is wrong by half; fused alone gives 1.5, and a larger batch 1.2 a doubling."""

    def rate(settings: Settings) -> float:
        half = 2.0 if settings.precision == "bf16-mixed" else 1.0
        fused = 1.5 if settings.optimizer_implementation == "fused" else 1.0
        return 100.0 * half * fused * ((settings.batch_size or 32) / 32) ** 0.26

    machine = FakeMachine(rate, fate=_spoilt)
    plan = _plan(machine, on_device=on_device)
    found = plan.search()
    best = found.finalists[0].settings
    assert (best.precision, best.optimizer_implementation) == ("fp32", "fused")
    assert best.batch_size == 256
    assert "50.00%" in plan.candidates.dropped["precision"]
    trials = [probe for probe in machine.probes if probe.kind == "joint"]
    refused = [number for number, probe in enumerate(trials) if probe.settings.precision != "fp32"]
    assert len(refused) == 1


def test_an_own_start_method_changes_nothing_but_itself() -> None:
    """Workers by spawn: every look that torch's own start method gets is made, those without workers among them."""
    kept = {"multiprocessing_context": "kept as it is"}
    asked = {}
    for method in (None, "spawn"):
        own = Settings(batch_size=32, multiprocessing_context=method, num_workers=2, prefetch_factor=2)
        machine = FakeMachine(
            lambda settings: 100.0 * (1 if settings.num_workers else 3), compute=lambda settings: 100.0
        )
        _plan(machine, on_device=True, candidates=candidates(own, values=_VALUES, dropped=kept)).search()
        asked[method] = [(probe.kind, probe.settings.replace(multiprocessing_context=None)) for probe in machine.probes]
        with_workers = [probe.settings for probe in machine.probes if probe.settings.num_workers]
        assert {settings.multiprocessing_context for settings in with_workers} == {method}
    assert asked["spawn"] == asked[None]
    assert {kind for kind, settings in asked["spawn"] if not settings.num_workers} >= {"compute", "loader", "joint"}


def test_a_setting_that_hangs_leaves_the_race_its_time() -> None:
    """Larger batches hang; the two workers found before them are raced all the same."""
    machine = SlowMachine(lambda probe: 1e9 if (probe.settings.batch_size or 0) > 32 else 1.0)
    plan = _plan(machine, budget_s=40.0)
    narrator: Any = SimpleNamespace(say=lambda *_: None, lap=lambda _: None)
    sandbox: Any = SimpleNamespace(run=machine.run)
    run = Run(plan=plan, run=machine.run, sandbox=sandbox, study=plan.study, narrator=narrator, pace=CPU)
    run.go()
    assert any(race.wins and race.candidate.num_workers == 2 for race in run.races)
    assert machine.now <= 1.1 * 40.0


@pytest.mark.parametrize("on_device", [False, True], ids=["cpu", "device"])
@pytest.mark.parametrize("rows", [70, 100])
def test_a_batch_known_to_be_too_large_is_not_asked_again(rows: int, on_device: bool) -> None:
    """Under settings that need as much a row, what ran out of memory once is a ceiling."""
    full: list[Settings] = []

    def fate(probe: Probe) -> Outcome | None:
        settings = probe.settings
        if (settings.batch_size or 0) <= rows or probe.kind == "loader":
            return None
        needs = (settings.precision, settings.channels_last, settings.activation_checkpointing)
        for known in full:
            alike = needs == (known.precision, known.channels_last, known.activation_checkpointing)
            assert not alike or (settings.batch_size or 0) < (known.batch_size or 0)
        full.append(settings)
        return OutOfMemory(kind=probe.kind, settings=settings, where="accelerator", message="full")

    machine = FakeMachine(lambda settings: 100.0 * ((settings.batch_size or 1) / 32) ** 0.5, fate=fate)
    found = _plan(machine, on_device=on_device).search()
    assert full
    assert 32 < (found.finalists[0].settings.batch_size or 0) <= rows
