"""How much of the budget the race needs: rounds by what there is to prove, laps by what a turn of the workers takes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.measurement import Measured
from autotune.planner.pace import Pace

__all__ = ["affordable", "race_reserve_s", "rounds_wanted"]

_USUAL_SHARE = 0.45  # of the budget: searching needs the rest
_MOST_SHARE = 0.6  # of a budget so short that even the shortest race takes more than its usual share
_UNSEEN_SHARE = 0.3  # of the budget, while nothing was measured yet
_SHORT_LAP_S = 0.5  # the race's shortest, and what goes back and forth
_PLANNED_SHARE = 0.9  # the race plans with this much of its time
_AGAIN_SHARE = 0.25  # of the start-up of a compiled setting: its kernels are on the disk by then
_SEEN_SHARE = 0.85  # of the gain that a search saw remains in a race: the fastest of many was lucky, too
_HOPELESS = 2  # a gain that needs this many times the most rounds is hardly proven
_SIGMAS = 3.5  # one-sided 95 % bound of 1.8 with few rounds, and as much again to lie above it 19 times out of 20


def rounds_wanted(ratio: float, pace: Pace) -> int:
    """Rounds that prove a gain most of the times.

    Args:
        ratio: Over the baseline's rate, as the search saw it.
        pace: Constants of this machine.

    Returns:
        Between the pace's fewest and most rounds.

    Source: sample size of a one-sided paired test, n = ((t_alpha + z_beta) sigma / delta)^2, NIST/SEMATECH e-Handbook
    7.2.2.2.
    """
    needed = _rounds_needed(ratio, pace)
    return max(pace.race_rounds, min(pace.most_race_rounds, needed + needed % 2))


def _rounds_needed(ratio: float, pace: Pace) -> int:
    gain = _SEEN_SHARE * math.log(max(ratio, 1e-9)) - math.log1p(pace.margin)
    return math.ceil((_SIGMAS * pace.lap_noise / gain) ** 2) if gain > 0 else _HOPELESS * pace.most_race_rounds + 1


def race_reserve_s(budget_s: float, pace: Pace, racers: Sequence[Measured]) -> float:
    """Seconds to keep back for the race.

    Args:
        budget_s: The whole budget.
        pace: Constants of this machine.
        racers: The baseline, then what would race against it now; the baseline alone while there is nothing, which
            keeps back no more than a race of short laps takes; none: nothing was measured yet.
    """
    if not racers:
        return _UNSEEN_SHARE * budget_s
    baseline, *others = racers
    entries = [baseline, *(others or [baseline])]
    starts_s, least = sum(_start_s(one, pace) for one in entries), _least_s(pace, entries)
    wanted = 0.0
    if others:
        ratio = others[0].samples_per_s / max(baseline.samples_per_s, 1e-9)
        hopeless = _rounds_needed(ratio, pace) > _HOPELESS * pace.most_race_rounds  # better to look for a larger gain
        rounds = pace.race_rounds if hopeless else rounds_wanted(ratio, pace)
        wanted = starts_s + rounds * sum(_lap_s(one, pace.race_lap_s) for one in entries)
    usual = min(wanted, _USUAL_SHARE * budget_s)
    return min(max(least, usual) / _PLANNED_SHARE, _MOST_SHARE * budget_s)


def affordable(left_s: float, pace: Pace, baseline: Measured, finalists: Sequence[Measured]) -> list[Measured]:
    """Those that can race in the time left, the first in any case.

    Args:
        left_s: For the whole race.
        pace: Constants of this machine.
        baseline: Who they race against.
        finalists: In the order of preference.
    """
    racing = list(finalists)
    while len(racing) > 1 and _least_s(pace, [baseline, *racing]) > left_s:
        racing.pop()
    return racing


def _least_s(pace: Pace, entries: Sequence[Measured]) -> float:
    return sum(_start_s(one, pace) for one in entries) + pace.race_rounds * sum(
        _lap_s(one, _SHORT_LAP_S) for one in entries
    )


def _start_s(measured: Measured, pace: Pace) -> float:
    """From nothing to the first timed lap, a shortest untimed one included."""
    seconds = measured.cost_s - math.fsum(chunk.seconds for chunk in measured.chunks)
    if measured.settings.compile_mode is not None:
        seconds = min(seconds, _AGAIN_SHARE * seconds + pace.compiled_start_s)
    return max(seconds, 0.0) + _lap_s(measured, _SHORT_LAP_S)


def _lap_s(measured: Measured, lap_s: float) -> float:
    """One lap: an untimed step, and as many as it takes; whole turns of the workers where these are waited for."""
    return measured.step_s + max(lap_s, measured.turn_s)
