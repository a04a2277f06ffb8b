"""The time kept back for the race."""

from __future__ import annotations

import pytest

from autotune.planner import CPU, race_reserve_s


@pytest.mark.parametrize("budget_s", [15.0, 30.0, 60.0, 120.0, 300.0])
def test_what_is_kept_back_holds_five_rounds_of_short_laps(budget_s: float) -> None:
    """Both set-ups, an untimed lap each, and five rounds of at least 0.4 s laps."""
    kept = race_reserve_s(budget_s, CPU, set_up_s=0.5, entries=2)
    assert kept >= 2 * (0.5 + 6 * 0.4)
    assert kept <= 0.6 * budget_s


def test_a_long_budget_races_long_laps() -> None:
    """With time, laps have their full length."""
    assert race_reserve_s(300.0, CPU, set_up_s=1.0, entries=2) == pytest.approx(2 * (1.3 + 5 * CPU.race_lap_s))
