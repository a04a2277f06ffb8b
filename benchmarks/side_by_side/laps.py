"""The race at the end: defaults, X, defaults, Y, defaults …, the order reversed every round.

Each lap is one of the tuner's own race laps: steady state first, whole rounds of workers, samples not read before. A
peer's ratio in a round is its rate over the geometric mean of the two laps of the defaults around it, so that a
machine that drifts changes both alike. A lap in which others used the CPU is run once more; rounds that stay
disturbed are left out if half of them at least were not.

Many workers with large batches can hold more samples ready than a short lap reads: such a lap says how full the stock
was. So a lap is as long as it takes to read the setting's whole stock several times, which one untimed lap shows.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune import Settings
from autotune.measurement import Measured, Outcome, Probe
from benchmarks.probing import OTHERS_CORES, Ratio

__all__ = ["Driven", "Lap", "Laps", "Standing", "paired", "stock_rows"]

# Compiling anew, or a step that takes many seconds, must fit.
_DEADLINE_S = 300.0
# A lap reads the loader's whole stock so many times, if that takes no longer than this.
_STOCKS, _LONGEST_LAP_S = 3, 12.0
# After so many rounds, a peer that is this much slower than the defaults is out: its place is known.
_SLOW_ROUNDS, _SLOW = 2, 0.5


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


@dataclass(frozen=True, slots=True)
class Driven:
    """One round of one entry."""

    round: int
    ratio: float
    """To the laps of the defaults around it."""
    samples_per_s: float
    disturbed: bool = False
    """Others used the CPU in one of the three laps, although each was run twice then."""


@dataclass(slots=True)
class Standing:
    """How one entry did."""

    driven: list[Driven] = field(default_factory=list)
    left: str | None = None
    """Why it left the race before its end."""

    @property
    def kept(self) -> list[Driven]:
        """The undisturbed rounds, if they are half of all at least: a choice that does not look at the ratios."""
        quiet = [one for one in self.driven if not one.disturbed]
        return quiet if 2 * len(quiet) >= len(self.driven) else self.driven

    @property
    def ratios(self) -> list[float]:
        return [one.ratio for one in self.kept]

    @property
    def median(self) -> float | None:
        return statistics.median(self.ratios) if self.driven else None

    @property
    def samples_per_s(self) -> float | None:
        return statistics.median(one.samples_per_s for one in self.kept) if self.driven else None


class Laps:
    """All laps of one race.

    Args:
        defaults: What all others are compared with.
        entries: The other distinct settings, by name.
        run: Answers ``lap`` probes.
        lap_s: Window of a lap, at least.
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
        self._windows_s: dict[str | None, float] = {}
        self.laps: list[Lap] = []
        self.standings = {name: Standing() for name in entries}

    def go(self, rounds: int) -> None:
        """Drives ``rounds`` rounds, after one lap of each that counts for nothing.

        Raises:
            RuntimeError: The defaults do not run.
        """
        first = self._lap(-1, None)
        if first.samples_per_s is None:
            raise RuntimeError(f"the defaults do not run: {first.fate}")
        for name, standing in self.standings.items():
            first = self._lap(-1, name)
            if first.samples_per_s is None:
                standing.left = f"{first.fate} before the first round"
        before = self._lap(0, None)
        for number in range(rounds):
            names = [name for name, standing in self.standings.items() if standing.left is None]
            for name in names if number % 2 == 0 else names[::-1]:
                lap, after = self._lap(number, name), self._lap(number, None)
                _note(self.standings[name], before, lap, after)
                before = after
            self._drop_slow()
            self._say(f"round {number + 1} of {rounds} is over")

    @property
    def default_rates(self) -> list[float]:
        """Of the defaults' laps that count."""
        return [lap.samples_per_s for lap in self.laps if lap.name is None and lap.round >= 0 and lap.samples_per_s]

    def window_s(self, name: str | None) -> float:
        """Length of the laps of an entry (None: of the defaults)."""
        return self._windows_s.get(name, self._lap_s)

    def _drop_slow(self) -> None:
        for standing in self.standings.values():
            ran = standing.left is None and len(standing.driven) >= _SLOW_ROUNDS
            if ran and max(one.ratio for one in standing.driven) < _SLOW:
                standing.left = f"under {_SLOW} of the defaults in {len(standing.driven)} rounds"

    def _lap(self, number: int, name: str | None) -> Lap:
        outcome = self._one(name)
        if isinstance(outcome, Measured) and (outcome.others_cores or 0.0) > OTHERS_CORES:
            again = self._one(name)
            outcome = again if isinstance(again, Measured) else outcome
        rate = outcome.samples_per_s if isinstance(outcome, Measured) and outcome.samples_per_s > 0 else None
        if number < 0 and rate:
            read_s = _STOCKS * stock_rows(outcome.settings) / rate
            self._windows_s[name] = max(self._lap_s, min(_LONGEST_LAP_S, read_s))
        others = outcome.others_cores if isinstance(outcome, Measured) else None
        lap = Lap(
            round=number,
            name=name,
            samples_per_s=rate,
            fate=_fate(outcome),
            others_cores=others,
            cost_s=outcome.cost_s,
        )
        self.laps.append(lap)
        return lap

    def _one(self, name: str | None) -> Outcome:
        settings = self._defaults if name is None else self._entries[name]
        self._seed += 1
        return self._run(
            Probe(kind="lap", settings=settings, window_s=self.window_s(name), deadline_s=_DEADLINE_S, seed=self._seed)
        )

    def to_json(self) -> list[dict[str, object]]:
        """Every lap in its order."""
        return [dataclasses.asdict(lap) for lap in self.laps]


def paired(one: Standing, other: Standing) -> Ratio | None:
    """Ratio of two entries over the rounds that both drove; None: there is no such round."""
    ours, theirs = ({driven.round: driven.ratio for driven in each.kept} for each in (one, other))
    ratios = [ours[number] / theirs[number] for number in ours if number in theirs]
    return Ratio.of(ratios) if ratios else None


def _note(standing: Standing, before: Lap, lap: Lap, after: Lap) -> None:
    """Writes down a lap between two of the defaults."""
    if lap.samples_per_s is None:
        standing.left = f"{lap.fate} in round {lap.round + 1}"
    elif before.samples_per_s is not None and after.samples_per_s is not None:
        ratio = lap.samples_per_s / math.sqrt(before.samples_per_s * after.samples_per_s)
        disturbed = any((one.others_cores or 0.0) > OTHERS_CORES for one in (before, lap, after))
        standing.driven.append(Driven(lap.round, ratio, lap.samples_per_s, disturbed))


def stock_rows(settings: Settings) -> int:
    """Samples that the loader's workers may have ready."""
    return settings.num_workers * (settings.prefetch_factor or 0) * (settings.batch_size or 1)


def _fate(outcome: Outcome) -> str:
    said = getattr(outcome, "reason", None) or getattr(outcome, "message", None)
    return f"{outcome.fate} ({said.splitlines()[0][:150]})" if said else outcome.fate
