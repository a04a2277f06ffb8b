"""Hundreds of misbehaving trials in one sandbox: each gets its answer, the next one is right, nothing is left."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autotune.hardware import Hardware, Limits
from autotune.measurement import Crashed, Measured, Probe, TimedOut
from autotune.planner import CPU, Plan
from autotune.sandbox import Sandbox
from autotune.settings import Settings
from autotune.study import Study
from tests.chaos.conftest import Figures
from tests.planner.fake_machine import candidates
from tests.planner.fake_machine import hardware as few_cores

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("benches")]

_TRIALS = 200
_LIMITS = Limits(ram_bytes=2**30, shm_bytes=None, open_files=None)
_EXIT_CODES = {"exits": 17, "raises SystemExit": 3, "is killed": -9, "segfaults": -11, "aborts": -6}


def _probe(seed: int, *, may_hang: bool) -> Probe:
    settings = Settings(batch_size=1 + seed % 7).replace(num_workers=seed % 3)
    return Probe(kind="joint", settings=settings, seed=seed, deadline_s=0.7 if may_hang else 60.0)


@pytest.mark.timeout(400)
def test_two_hundred_misbehaving_trials_neither_hang_nor_corrupt_nor_leave_anything(
    nothing_left: Path, hardware: Hardware, figures: Figures
) -> None:
    """Each outcome is of the right kind and of the right setting; every healthy figure is exact."""
    ways: Any = importlib.import_module("chaos_benches")
    children = set(psutil.Process().children(recursive=True))
    study = Study()
    with Sandbox(SimpleNamespace(), hardware, _LIMITS, bench="chaos_benches:Chaos") as sandbox:  # type: ignore[arg-type]
        for seed in range(_TRIALS):
            way = ways.fault(seed)
            probe = _probe(seed, may_hang=ways.FATES[way] == "timed out")
            figures.count(way)
            outcome = sandbox.run(probe)
            study.record(outcome)
            assert (outcome.fate, outcome.settings, outcome.kind) == (ways.FATES[way], probe.settings, "joint"), way
            if isinstance(outcome, Measured):
                assert outcome.samples_per_s == pytest.approx(ways.rate(probe.settings))
            if isinstance(outcome, Crashed):
                assert outcome.exit_code == _EXIT_CODES.get(way, outcome.exit_code)
            if isinstance(outcome, TimedOut):
                assert outcome.cost_s >= outcome.deadline_s
            figures.count(way, survived=True)
        assert sandbox.warnings == ()
    assert [trial.number for trial in study.optuna_study.trials] == list(range(_TRIALS))
    assert {trial.state.is_finished() for trial in study.optuna_study.trials} == {True}
    assert set(psutil.Process().children(recursive=True)) == children


@pytest.mark.timeout(300)
def test_a_search_over_settings_that_die_ends_with_settings_that_live(
    nothing_left: Path, hardware: Hardware, figures: Figures
) -> None:
    """The plan in a real sandbox: whoever is killed, exits or raises is no finalist, and the figures are exact."""
    ways: Any = importlib.import_module("chaos_benches")
    with Sandbox(SimpleNamespace(), hardware, _LIMITS, bench="chaos_benches:ChaosOfSettings") as sandbox:  # type: ignore[arg-type]

        def run(probe: Probe) -> Any:
            outcome = sandbox.run(probe)
            if not isinstance(outcome, Measured):
                figures.count(outcome.fate)
                figures.count(outcome.fate, survived=True)
            return outcome

        found = Plan(
            candidates=candidates(),
            hardware=few_cores(),
            pace=CPU,
            study=Study(),
            run=run,
            clock=time.monotonic,
            budget_s=15.0,
            started_s=time.monotonic(),
        ).search()
    assert found.baseline is not None
    for one in found.finalists:
        assert one.samples_per_s == pytest.approx(ways.rate(one.settings))
