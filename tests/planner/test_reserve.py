"""The time kept back for the race."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.measurement import Chunk, Measured
from autotune.planner import CPU, GPU, affordable, race_reserve_s, rounds_wanted
from autotune.settings import Settings


def _measured(rate: float = 100.0, *, step_s: float = 0.1, set_up_s: float = 0.5, **knobs: Any) -> Measured:
    rows = round(rate * step_s)
    return Measured(
        kind="joint",
        settings=Settings(**{"batch_size": rows, **knobs}),
        chunks=(Chunk(rows, step_s),) * 5,
        cost_s=set_up_s + 5 * step_s,
    )


@pytest.mark.parametrize("budget_s", [15.0, 30.0, 60.0, 120.0, 300.0])
def test_what_is_kept_back_holds_five_rounds_of_short_laps(budget_s: float) -> None:
    """Both set-ups, an untimed lap each, and five rounds of at least 0.4 s laps; never most of the budget."""
    kept = race_reserve_s(budget_s, CPU, [_measured(), _measured(200.0)])
    assert kept >= 2 * (0.5 + 6 * 0.4)
    assert kept <= 0.6 * budget_s


def test_long_steps_need_longer_races() -> None:
    """A lap is a step at least, however long that is."""
    short, long = ([_measured(step_s=step_s), _measured(200.0, step_s=step_s)] for step_s in (0.1, 3.0))
    assert race_reserve_s(300.0, GPU, long) >= 2 * 6 * 3.0 > race_reserve_s(300.0, GPU, short)


def test_a_small_gain_needs_more_rounds_than_a_large_one() -> None:
    """Twice the speed shows in the fewest rounds; next to nothing not even in the most."""
    rounds = [rounds_wanted(ratio, CPU) for ratio in (2.0, 1.3, 1.2, 1.0)]
    assert rounds == sorted(rounds)
    assert (rounds[0], rounds[-1]) == (CPU.race_rounds, CPU.most_race_rounds)
    assert rounds_wanted(1.2, GPU) < rounds_wanted(1.2, CPU)


def test_with_nothing_to_race_yet_only_the_shortest_race_is_kept_back() -> None:
    """The search gets all the time that a first gain could leave it."""
    nothing = race_reserve_s(120.0, CPU, [_measured()])
    assert nothing < race_reserve_s(120.0, CPU, [_measured(), _measured(115.0)])
    assert race_reserve_s(120.0, CPU, []) == pytest.approx(36.0)


def test_a_finalist_that_would_cost_the_first_its_race_does_not_start() -> None:
    """One decision is better than none; with time, both race."""
    baseline, first, second = _measured(), _measured(200.0), _measured(150.0, set_up_s=8.0)
    assert affordable(10.0, CPU, baseline, [first, second]) == [first]
    assert affordable(60.0, CPU, baseline, [first, second]) == [first, second]
    assert affordable(0.0, CPU, baseline, [first]) == [first]
