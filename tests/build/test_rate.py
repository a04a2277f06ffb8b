"""The real training rate against the promised one, on a fake clock."""

from __future__ import annotations

import warnings

import pytest

from autotune.build.rate import WINDOW_CALLS, SlowTrainingWarning, TrainingRate


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run(rate: TrainingRate, clock: Clock, calls: int, seconds: float, rows: int = 8) -> None:
    for _ in range(calls):
        clock.now += seconds
        rate.record(rows)


def test_the_rate_is_rows_over_time_between_calls() -> None:
    """Eight rows every half second are 16 samples/s, whatever their number."""
    clock = Clock()
    rate = TrainingRate(clock, None)
    assert rate.samples_per_s is None
    run(rate, clock, 1, 7.0)
    assert rate.samples_per_s is None
    run(rate, clock, 5, 0.5)
    assert rate.samples_per_s == pytest.approx(16.0)
    run(rate, clock, 5, 0.5, rows=4)
    assert rate.samples_per_s == pytest.approx(12.0)


def test_the_rate_forgets_what_is_long_ago() -> None:
    """Only the last calls count."""
    clock = Clock()
    rate = TrainingRate(clock, None)
    run(rate, clock, 200, 1.0)
    run(rate, clock, WINDOW_CALLS, 0.5)
    assert rate.samples_per_s == pytest.approx(16.0)


def test_a_pause_does_not_count() -> None:
    """A long validation between epochs leaves the rate alone."""
    clock = Clock()
    rate = TrainingRate(clock, None)
    run(rate, clock, 4, 0.5)
    rate.pause()
    clock.now += 1000
    run(rate, clock, 4, 0.5)
    assert rate.samples_per_s == pytest.approx(16.0)


def test_staying_slow_warns_once() -> None:
    """Three windows below 0.9 of the promise warn, and never again."""
    clock = Clock()
    rate = TrainingRate(clock, 20.0)
    run(rate, clock, 1 + 2 * WINDOW_CALLS, 0.5)
    run(rate, clock, WINDOW_CALLS - 1, 0.5)
    with pytest.warns(SlowTrainingWarning, match="16 samples/s; 20 were") as caught:
        run(rate, clock, 1, 0.5)
    assert len(caught) == 1
    run(rate, clock, 10 * WINDOW_CALLS, 0.5)
    run(rate, clock, WINDOW_CALLS, 0.1)
    run(rate, clock, 10 * WINDOW_CALLS, 0.5)


@pytest.mark.parametrize(("promised", "seconds"), [(17.0, 0.5), (None, 50.0)])
def test_a_rate_within_the_promise_is_silent(promised: float | None, seconds: float) -> None:
    """Within 10 %, or with nothing promised, nothing is said."""
    clock = Clock()
    run(TrainingRate(clock, promised), clock, 10 * WINDOW_CALLS, seconds)


def test_slow_windows_must_follow_each_other() -> None:
    """Two slow windows, one good one, two slow ones: no warning."""
    clock = Clock()
    rate = TrainingRate(clock, 20.0)
    run(rate, clock, 1, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seconds in (0.5, 0.5, 0.4, 0.5, 0.5, 0.4):
            run(rate, clock, WINDOW_CALLS, seconds)
