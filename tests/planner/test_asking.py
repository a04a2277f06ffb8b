"""The price of a new process is known before it is paid."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, TimedOut
from autotune.planner.asking import Asking
from autotune.settings import Settings

_SETTINGS = Settings()
_FINE = Measured(kind="joint", settings=_SETTINGS, chunks=(), cost_s=1.0)
_HUNG = TimedOut(kind="joint", settings=_SETTINGS, deadline_s=1.0, cost_s=1.0)
_CRASHED = Crashed(kind="joint", settings=_SETTINGS, exit_code=-9, cost_s=1.0)
_FULL = OutOfMemory(kind="joint", settings=_SETTINGS, where="allocator", message="full", cost_s=1.0)


def _asking(answers: list[tuple[float, Outcome]], **options: Any) -> Asking:
    """Each answer comes after its number of seconds."""
    now = [0.0]

    def run(_: Probe) -> Outcome:
        seconds, outcome = answers.pop(0)
        now[0] += seconds
        return outcome

    return Asking(run, lambda: now[0], start_s=4.0, **{"survives_out_of_memory": False, **options})


@pytest.mark.parametrize(("death", "on_device", "due_s"), [
    (_HUNG, False, 4.0), (_CRASHED, True, 4.0), (_FULL, False, 4.0), (_FULL, True, 0.0), (_FINE, False, 0.0),
])  # fmt: skip
def test_a_start_is_due_after_a_death_only(death: Outcome, on_device: bool, due_s: float) -> None:
    """Running out of a device's memory leaves the process alive."""
    ask = _asking([(1.0, death)], survives_out_of_memory=on_device)
    assert ask(Probe(kind="joint", settings=_SETTINGS)) is death
    assert ask.due_s == due_s


def test_the_last_start_seen_is_the_estimate_of_the_next() -> None:
    """2.5 s beyond the trial itself, where the first start had taken 4 s."""
    ask = _asking([(1.0, _HUNG), (3.5, _FINE), (1.0, _CRASHED)])
    due = []
    for _ in range(3):
        ask(Probe(kind="joint", settings=_SETTINGS))
        due.append(ask.due_s)
    assert due == [4.0, 0.0, 2.5]
