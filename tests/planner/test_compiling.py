"""When the plan compiles, in which mode first, and when it does not compile again."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.measurement import Outcome, Probe
from autotune.planner import GPU, Plan
from autotune.settings import Settings
from autotune.study import Study
from tests.planner.fake_machine import CARD, FakeMachine, candidates, hardware

_VALUES = {"precision": ("bf16-mixed", "tf32"), "compile_mode": ("default", "reduce-overhead")}
_GAIN = {None: 1.0, "default": 1.2, "reduce-overhead": 8.0}


class Compiling(FakeMachine):
    """Compiles for 30 s whatever it did not compile before."""

    def __init__(self, rate: Any) -> None:
        super().__init__(rate, wait_share=0.0)
        self.compiled: set[Any] = set()

    def run(self, probe: Probe) -> Outcome:
        settings = probe.settings
        code = (settings.compile_mode, settings.batch_size, settings.precision, probe.kind == "numerics")
        self.trial_s = 30.0 if settings.compile_mode and code not in self.compiled else 2.0
        if self.trial_s <= probe.deadline_s:
            self.compiled.add(code)
        return super().run(probe)

    @property
    def modes(self) -> list[str]:
        """In the order in which they were first tried."""
        return list(dict.fromkeys(one.settings.compile_mode for one in self.probes if one.settings.compile_mode))


def _search(machine: Compiling, budget_s: float, **more: Any) -> Plan:
    plan = Plan(
        candidates=candidates(Settings(batch_size=32), values=_VALUES, **more),
        hardware=hardware(cores=4, accelerator=CARD),
        pace=GPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=budget_s,
        started_s=machine.clock(),
    )
    plan.search()
    return plan


def _launch_bound(settings: Settings) -> float:
    tf32 = 1.3 if settings.precision == "tf32" else 1.0  # found after the batch was grown in another precision
    return 40.0 * (settings.batch_size or 1) * tf32 * _GAIN[settings.compile_mode]


@pytest.mark.parametrize("locked", [False, True])
def test_graphs_come_first_where_launching_kernels_is_what_takes_the_time(locked: bool) -> None:
    """Half the batch took as long in some precision, if not in the one that is best by then."""
    machine = Compiling(_launch_bound)
    cap = {"locked": True, "max_effective_batch_size": 32} if locked else {}
    plan = _search(machine, 150.0, **cap)
    assert machine.modes[0] == "reduce-overhead"
    assert plan.best.settings.compile_mode == "reduce-overhead"


def test_code_comes_first_where_the_batch_is_what_takes_the_time() -> None:
    """A step that grows with its batch gains from fused kernels, not from graphs."""
    machine = Compiling(lambda settings: 4000.0 * (2.0 if settings.compile_mode else 1.0))
    _search(machine, 150.0)
    assert machine.modes[0] == "default"


def test_what_was_compiled_is_not_compiled_again_for_the_callers_batch_with_no_time_for_it() -> None:
    """It would end in the middle, and take the race of what was found with it."""
    machine = Compiling(_launch_bound)
    plan = _search(machine, 120.0)
    compiled = [one.settings.batch_size for one in machine.probes if one.settings.compile_mode]
    assert plan.best.settings.compile_mode is not None
    assert 32 not in compiled
    assert plan.until_end_s() > 15.0
    again = Compiling(_launch_bound)
    _search(again, 300.0)
    assert 32 in [one.settings.batch_size for one in again.probes if one.settings.compile_mode]


@pytest.mark.parametrize("gain", [1.1, 0.97])
def test_a_compilation_is_not_thrown_away_for_one_unlucky_look(gain: float) -> None:
    """Where the first look is 5 % short and so close to a draw, both are looked at again, and the truth counts."""
    seen: list[str | None] = []

    def rate(settings: Settings) -> float:
        if settings.compile_mode is None:
            return 4000.0
        seen.append(settings.compile_mode)
        return 4000.0 * gain * (0.9 if len(seen) == 1 else 1.0)

    machine = Compiling(rate)
    plan = _search(machine, 150.0)
    assert plan.best.settings.compile_mode == ("default" if gain > 1 else None)
