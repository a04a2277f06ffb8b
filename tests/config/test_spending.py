"""The budget's parts add up."""

from __future__ import annotations

import math

from autotune.config.spending import spending
from autotune.measurement import Chunk, Measured, Outcome, Rejected
from autotune.settings import Settings

_SETTINGS = Settings()
_JOINT = Measured(
    kind="joint", settings=_SETTINGS, chunks=(Chunk(32, 1.0), Chunk(32, 0.5)), start_s=0.25, warmup_s=1.0, cost_s=3.0
)
_OUTCOMES: list[Outcome] = [
    _JOINT,
    Measured(kind="compute", settings=_SETTINGS, chunks=(Chunk(32, 0.5),), warmup_s=0.5, cost_s=1.25),
    Measured(kind="numerics", settings=_SETTINGS, chunks=(), warmup_s=2.0, cost_s=2.0),
    Rejected(kind="joint", settings=_SETTINGS, phase="step", reason="no", cost_s=1.5),
    Measured(kind="lap", settings=_SETTINGS, chunks=(Chunk(32, 4.0),), cost_s=4.0),
]


def test_every_second_goes_into_one_part() -> None:
    """First batches are not counted as warm-up once more, nor race laps as windows."""
    spent = spending(_OUTCOMES, start_s=5.0, search_s=10.0, race_s=6.0)
    assert spent == {
        "start": 5.0,
        "first batches": 0.25,
        "warm-up": 0.75 + 0.5,
        "windows": 2.0,
        "numerics": 2.0,
        "failed trials": 1.5,
        "between trials": 3.0,
        "race": 6.0,
    }
    assert math.fsum(spent.values()) == 21.0


def test_parts_that_took_no_time_are_left_out() -> None:
    """A run that was over before its first trial shows its start."""
    assert spending([], start_s=5.0, search_s=0.0, race_s=0.0) == {"start": 5.0}
