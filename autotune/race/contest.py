"""The laps of a race: how many, how long, in which order, and what becomes of those that fail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from autotune.measurement import Measured, Outcome, Probe, Rejected
from autotune.race.entry import SHORTEST_LAP_S, TARGET_LAP_S, Entry, rounds_and_lap_s
from autotune.race.result import RaceResult
from autotune.settings import Settings

__all__ = ["race"]

# Laps end on a whole round of workers, so they take somewhat longer than asked.
_PLANNED_SHARE = 0.9
# A machine that slowed down after the sizing may run over by this much before the race is given up.
_OVERRUN = 1.1
# A lap that takes this many times as long as planned hangs.
_DEADLINE_LAPS = 10.0
_SHORTEST_DEADLINE_S = 1.0
# Of the time left, for the first lap of a setting that others wait behind.
_WARM_UP_SHARE = 0.6
# Other processes took this many of our cores during a lap: it says little about the settings.
_OTHERS_CORES = 0.25
# Rounds that may be added for disturbed ones.
_EXTRA_ROUNDS = 4


def race(
    baseline: Settings,
    candidates: Sequence[Settings],
    *,
    run: Callable[[Probe], Outcome],
    budget_s: float,
    margin: float,
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
    min_rounds: int = 5,
    max_rounds: int = 16,
) -> list[RaceResult]:
    """Race ``candidates`` against ``baseline`` in interleaved laps.

    Args:
        baseline: The settings to beat.
        candidates: One or more others; each is compared with the baseline alone.
        run: Runs one ``lap`` probe.
        budget_s: Wall time for all of it, untimed laps included.
        margin: Gain that a win must exceed, as a fraction: 0.02 with an accelerator, 0.05 on a CPU.
        clock: Seconds from any start.
        seed: Seed of the first lap's sampler; every lap reads other samples.
        min_rounds: Fewest timed rounds; if time is short, laps get shorter instead.
        max_rounds: Most timed rounds.

    Returns:
        One result per candidate, in order. A candidate that fails is out and carries its outcome; where the baseline
        fails or the time cannot hold ``min_rounds``, no candidate wins and ``undecided`` says why.
    """
    laps = _Laps(run=run, clock=clock, budget_s=budget_s, seed=seed)
    entries = [Entry(baseline), *(Entry(candidate) for candidate in candidates)]
    rounds, lap_s, undecided = laps.size(entries, min_rounds, max_rounds)
    if undecided is None:
        undecided = laps.run_rounds(entries, rounds, lap_s, min_rounds)
    result = partial(
        _result,
        margin=margin,
        lap_s=lap_s if entries[0].rates else None,
        undecided=undecided,
        seconds=laps.spent_s,
        min_rounds=min_rounds,
    )
    return [result(entries[0], entry) for entry in entries[1:]]


class _Laps:
    """The laps of one race under one budget."""

    def __init__(
        self, *, run: Callable[[Probe], Outcome], clock: Callable[[], float], budget_s: float, seed: int
    ) -> None:
        self._run = run
        self._clock = clock
        self._began = clock()
        self._budget_s = budget_s
        self._seed = seed

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    def size(self, entries: list[Entry], min_rounds: int, max_rounds: int) -> tuple[int, float, str | None]:
        """Rounds and lap length, or why there is no race.

        The first untimed lap builds and warms up. Where it is not known that the objects stay, and paying its price
        on every lap would leave too little, a second one shows what a lap costs once they are there.
        """
        for shortest_s in (TARGET_LAP_S, SHORTEST_LAP_S):
            if (late := self._warm_up_all(entries)) is not None:
                return 0, 0.0, late
            if (undecided := _over(entries)) is not None:
                return 0, 0.0, undecided
            racing = [entry for entry in entries if entry.racing]
            left_s = (self._budget_s - self.spent_s) * _PLANNED_SHARE
            rounds, lap_s = rounds_and_lap_s(left_s, racing, min_rounds, max_rounds)
            while lap_s < SHORTEST_LAP_S and len(racing) > 2:  # better one decision than none
                racing.pop().left_out = True
                rounds, lap_s = rounds_and_lap_s(left_s, racing, min_rounds, max_rounds)
            known = all(entry.resident or entry.overhead_s < SHORTEST_LAP_S / 2 for entry in racing)
            if lap_s >= (SHORTEST_LAP_S if known else shortest_s):
                return rounds, lap_s, None
            # What is planned for is more than laps usually take: better a race that just fits than none.
            if known and rounds_and_lap_s(left_s / _PLANNED_SHARE, racing, min_rounds, min_rounds)[1] >= SHORTEST_LAP_S:
                return min_rounds, SHORTEST_LAP_S, None
            if left_s <= 0 or known:
                break
        needed = self.spent_s + min_rounds * sum(e.lap_cost_s(SHORTEST_LAP_S) for e in racing)
        why = f"{min_rounds} rounds need {math.ceil(needed)} s and there were {self._budget_s:.0f} s"
        return 0, 0.0, f"Not raced, since {why}."

    def run_rounds(self, entries: list[Entry], rounds: int, lap_s: float, min_rounds: int) -> str | None:
        """Run the timed rounds; why there is no decision, or None.

        A round that other processes disturbed is run again while there is time, whatever its ratio was.
        """
        number = 0
        while number - _disturbed_rounds(entries) < rounds and number < rounds + _EXTRA_ROUNDS:
            if self.spent_s > self._budget_s * (1.0 if number >= min_rounds else _OVERRUN):
                return None if number >= min_rounds else f"Time ran out after {number} of {min_rounds} rounds."
            for entry in entries if number % 2 == 0 else entries[::-1]:
                if entry.racing and entries[0].failed is None:
                    self._timed_lap(entry, lap_s)
            if (undecided := _over(entries)) is not None:
                return undecided
            number += 1
        return None

    def _warm_up_all(self, entries: list[Entry]) -> str | None:
        """Why that was given up: the time was over, or there is nothing to compare with."""
        waiting = [entry for entry in entries if entry.racing]
        for number, entry in enumerate(waiting, start=1):
            left_s = self._budget_s - self.spent_s
            if left_s <= 0:
                return f"Not raced, since the {max(0.0, self._budget_s):.0f} s left did not even start all settings."
            # One that hangs must not take the time of those after it.
            self._warm_up(entry, left_s if number == len(waiting) else _WARM_UP_SHARE * left_s)
            if entries[0].failed is not None:
                return _over(entries)
        return None

    def _warm_up(self, entry: Entry, left_s: float) -> None:
        began = self._clock()
        measured = self._lap(entry, SHORTEST_LAP_S, deadline_s=left_s)
        if measured is not None:
            entry.warmed_up(measured, self._clock() - began, SHORTEST_LAP_S)

    def _timed_lap(self, entry: Entry, lap_s: float) -> None:
        left_s = self._budget_s * _OVERRUN - self.spent_s
        measured = self._lap(
            entry, lap_s, deadline_s=min(left_s, _DEADLINE_LAPS * (entry.lap_cost_s(lap_s) + entry.once_s))
        )
        entry.once_s = 0.0
        if measured is None:
            return
        entry.rates.append(measured.samples_per_s)
        entry.disturbed.append((measured.others_cores or 0.0) > _OTHERS_CORES)
        if measured.others_cores is not None:
            entry.others_cores = max(measured.others_cores, entry.others_cores or 0.0)

    def _lap(self, entry: Entry, lap_s: float, *, deadline_s: float) -> Measured | None:
        deadline_s = max(_SHORTEST_DEADLINE_S, deadline_s)
        probe = Probe(kind="lap", settings=entry.settings, window_s=lap_s, deadline_s=deadline_s, seed=self._seed)
        self._seed += 1
        outcome = self._run(probe)
        if isinstance(outcome, Measured) and outcome.samples_per_s > 0:
            return outcome
        entry.failed = _empty(outcome) if isinstance(outcome, Measured) else outcome
        return None


def _disturbed_rounds(entries: list[Entry]) -> int:
    racing = [entry.disturbed for entry in entries if entry.racing]
    return sum(any(laps) for laps in zip(*racing, strict=False))


def _over(entries: list[Entry]) -> str | None:
    if entries[0].failed is not None:
        return f"The baseline failed ({entries[0].failed.fate}): nothing can be compared with it."
    if not any(entry.racing for entry in entries[1:]):
        return "No candidate was left to race."
    return None


def _empty(outcome: Measured) -> Rejected:
    reason = "The lap measured no samples."
    return Rejected(kind="lap", settings=outcome.settings, phase="step", reason=reason, cost_s=outcome.cost_s)


def _result(
    baseline: Entry,
    entry: Entry,
    *,
    margin: float,
    lap_s: float | None,
    undecided: str | None,
    seconds: float,
    min_rounds: int,
) -> RaceResult:
    if entry.failed is not None and baseline.failed is None:
        undecided = f"The candidate failed ({entry.failed.fate}) and left the race."
    elif entry.left_out:
        undecided = "There was time to race one setting only, and another one came first."
    kept = _kept_rounds(baseline, entry, min_rounds)
    seen = [cores for cores in (baseline.others_cores, entry.others_cores) if cores is not None]
    return RaceResult(
        baseline=baseline.settings,
        candidate=entry.settings,
        margin=margin,
        baseline_samples_per_s=tuple(baseline.rates[number] for number in kept),
        candidate_samples_per_s=tuple(entry.rates[number] for number in kept),
        lap_s=lap_s,
        failed=baseline.failed or entry.failed,
        undecided=undecided,
        others_cores=max(seen, default=None),
        seconds=seconds,
    )


def _kept_rounds(baseline: Entry, entry: Entry, min_rounds: int) -> list[int]:
    """The undisturbed rounds if they suffice, else all: a choice that does not look at the rates."""
    rounds = range(min(len(baseline.rates), len(entry.rates)))
    quiet = [number for number in rounds if not (baseline.disturbed[number] or entry.disturbed[number])]
    return quiet if len(quiet) >= min_rounds else list(rounds)
