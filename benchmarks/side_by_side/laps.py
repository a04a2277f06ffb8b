"""The race at the end: defaults, X, defaults, Y, defaults …, the order reversed every round.

Each lap is one of the tuner's own race laps: steady state first, whole rounds of workers, samples not read before. A
peer's ratio in a round is its rate over the geometric mean of the two laps of the defaults around it, so that a
machine that drifts changes both alike.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune import Settings
from autotune.measurement import Interval, Measured, Outcome, Probe, mean_interval
from autotune.race import RaceResult, race

__all__ = ["Lap", "Laps", "Standing", "duel", "in_words", "paired"]

# Compiling anew, or a step that takes many seconds, must fit.
_DEADLINE_S = 300.0
# Other processes took this many cores' worth of our time during a lap: it is run once more.
_OTHERS_CORES = 0.25
# After so many rounds, a peer that is this much slower than the defaults is out: its place is known.
_SLOW_ROUNDS, _SLOW = 2, 0.5
_DUEL_ROUNDS = 8
_DUEL_LAP_S = 2.5  # planned, so that laps of 1.5 s are left after all that a lap costs beside its window


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One lap, as it was driven."""

    round: int
    name: str | None
    """None: the defaults."""
    samples_per_s: float | None
    """None: it failed."""
    fate: str
    """With its reason, where it failed."""
    others_cores: float | None
    cost_s: float


@dataclass(slots=True)
class Standing:
    """How one entry did."""

    rounds: list[int] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """To the laps of the defaults around it, one per round of ``rounds``."""
    rates: list[float] = field(default_factory=list)
    left: str | None = None
    """Why it left the race before its end."""

    @property
    def median(self) -> float | None:
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def rate(self) -> float | None:
        return statistics.median(self.rates) if self.rates else None


class Laps:
    """All laps of one race.

    Args:
        defaults: What all others are compared with.
        entries: The other distinct settings, by name.
        run: Answers ``lap`` probes.
        lap_s: Window of a lap.
        say: Told of each round.
    """

    def __init__(
        self,
        defaults: Settings,
        entries: Mapping[str, Settings],
        *,
        run: Callable[[Probe], Outcome],
        lap_s: float,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._defaults, self._entries = defaults, entries
        self._run, self._lap_s, self._say = run, lap_s, say
        self._seed = 0
        self.laps: list[Lap] = []
        self.standings = {name: Standing() for name in entries}

    def go(self, rounds: int) -> None:
        """Drives ``rounds`` rounds, after one lap of the defaults that counts for nothing.

        Raises:
            RuntimeError: The defaults do not run.
        """
        if self._lap(-1, None) is None:
            raise RuntimeError(f"the defaults do not run: {self.laps[-1].fate}")
        before = self._lap(0, None)
        for number in range(rounds):
            names = [name for name, standing in self.standings.items() if standing.left is None]
            for name in names if number % 2 == 0 else names[::-1]:
                rate, after = self._lap(number, name), self._lap(number, None)
                self._note(self.standings[name], number, rate, before, after)
                before = after
            self._drop_slow()
            self._say(f"round {number + 1} of {rounds} is over")

    @property
    def default_rates(self) -> list[float]:
        """Of the defaults' laps that count."""
        return [lap.samples_per_s for lap in self.laps if lap.name is None and lap.round >= 0 and lap.samples_per_s]

    def _note(
        self, standing: Standing, number: int, rate: float | None, before: float | None, after: float | None
    ) -> None:
        if rate is None:
            standing.left = f"{self.laps[-2].fate} in round {number + 1}"
        elif before is not None and after is not None:
            standing.rounds.append(number)
            standing.ratios.append(rate / math.sqrt(before * after))
            standing.rates.append(rate)

    def _drop_slow(self) -> None:
        for standing in self.standings.values():
            ran = standing.left is None and len(standing.ratios) >= _SLOW_ROUNDS
            if ran and max(standing.ratios) < _SLOW:
                standing.left = f"under {_SLOW} of the defaults in {len(standing.ratios)} rounds"

    def _lap(self, number: int, name: str | None) -> float | None:
        outcome = self._one(name)
        if isinstance(outcome, Measured) and (outcome.others_cores or 0.0) > _OTHERS_CORES:
            again = self._one(name)
            outcome = again if isinstance(again, Measured) else outcome
        rate = outcome.samples_per_s if isinstance(outcome, Measured) and outcome.samples_per_s > 0 else None
        others = outcome.others_cores if isinstance(outcome, Measured) else None
        self.laps.append(
            Lap(
                round=number,
                name=name,
                samples_per_s=rate,
                fate=_fate(outcome),
                others_cores=others,
                cost_s=outcome.cost_s,
            )
        )
        return rate

    def _one(self, name: str | None) -> Outcome:
        settings = self._defaults if name is None else self._entries[name]
        self._seed += 1
        return self._run(
            Probe(kind="lap", settings=settings, window_s=self._lap_s, deadline_s=_DEADLINE_S, seed=self._seed)
        )

    def set_up_s(self, name: str | None) -> float:
        """The most that a lap of ``name`` has cost."""
        return max((lap.cost_s for lap in self.laps if lap.name == name), default=0.0)

    def to_json(self) -> list[dict[str, object]]:
        """Every lap in its order."""
        return [dataclasses.asdict(lap) for lap in self.laps]


def paired(one: Standing, other: Standing) -> tuple[float, Interval | None, int] | None:
    """Mean ratio of two entries over the rounds that both drove, its 95 % interval, and the rounds."""
    ours, theirs = (dict(zip(each.rounds, each.ratios, strict=True)) for each in (one, other))
    logs = [math.log(ours[number] / theirs[number]) for number in ours if number in theirs]
    return _exponentiated(logs) if logs else None


def duel(
    ours: Settings, other: Settings, *, run: Callable[[Probe], Outcome], set_up_s: float
) -> tuple[RaceResult, str]:
    """``ours`` against ``other`` alone, in the tuner's own race, and the ratio in words.

    Args:
        ours: The one.
        other: The other.
        run: Answers ``lap`` probes.
        set_up_s: What the first laps of both will cost.
    """
    budget_s = set_up_s + 2 * (_DUEL_ROUNDS + 2) * _DUEL_LAP_S
    result = race(other, [ours], run=run, budget_s=budget_s, margin=0.0, min_rounds=5, max_rounds=_DUEL_ROUNDS)[0]
    if result.undecided or not result.rounds:
        return result, f"no duel: {result.undecided}"
    return result, in_words(_exponentiated(result.log_ratios))


def in_words(ratio: tuple[float, Interval | None, int]) -> str:
    """A ratio with its interval."""
    mean, interval, rounds = ratio
    spread = f" (95 % interval {interval.low:.3f} to {interval.high:.3f})" if interval else ""
    return f"{mean:.3f}{spread}, {rounds} rounds"


def _fate(outcome: Outcome) -> str:
    said = getattr(outcome, "reason", None) or getattr(outcome, "message", None)
    return f"{outcome.fate} ({said.splitlines()[0][:150]})" if said else outcome.fate


def _exponentiated(logs: Sequence[float]) -> tuple[float, Interval | None, int]:
    found = mean_interval(logs)
    interval = Interval(math.exp(found.low), math.exp(found.high)) if found else None
    return math.exp(statistics.fmean(logs)), interval, len(logs)
