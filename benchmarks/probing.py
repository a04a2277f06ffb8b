"""The product's own probes for benchmarks: a workload in a sandbox, and laps of several settings in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, Probe, mean_interval
from autotune.sandbox import Sandbox
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from benchmarks.workloads import Workload

__all__ = ["OTHERS_CORES", "Bench", "Interleaved", "LapFailed", "Ratio", "described", "interleave", "opened"]

OTHERS_CORES = 0.25  # other processes took this many of our cores: the round is run again
_EXTRA_ROUNDS = 4
_LAP_DEADLINE_S = 60.0
_FIRST_DEADLINE_S = 300.0  # it may compile

Run = Callable[[Probe], Outcome]


class LapFailed(RuntimeError):
    """A setting that was measured before does not run in the race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An open sandbox and what may be tried in it."""

    run: Run
    candidates: Candidates
    hardware: Hardware
    start_s: float
    """Start of its process."""


@contextmanager
def opened(job: Workload, *, locked: bool) -> Iterator[Bench]:
    """A sandbox with the workload in it, under the rules that ``autotune()`` has by default.

    Args:
        job: What to train.
        locked: Only settings with the baseline's effective batch.
    """
    task = job.task()
    hardware = Hardware.detect(device=task.device)
    limits = Limits.of(hardware)
    rules = BatchRules(base_batch_size=task.base_batch_size, effective_batch_size="keep" if locked else None)
    with Sandbox(task, hardware, limits) as sandbox:
        facts = sandbox.describe()
        candidates = Candidates.of(facts, sandbox.hardware, limits, rules, Space())
        yield Bench(run=sandbox.run, candidates=candidates, hardware=sandbox.hardware, start_s=sandbox.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """How much faster one setting is than another, from rounds in which both ran."""

    median: float
    low: float | None
    """Lower end of the two-sided 95 % t-interval of the mean log ratio; None with fewer than two rounds."""
    high: float | None
    rounds: int

    def __str__(self) -> str:
        return self.text("round")

    def text(self, of: str) -> str:
        """The ratio and how sure it is; ``of`` is what was repeated."""
        if self.low is None or self.high is None:
            return f"{self.median:.2f} ({self.rounds} {of})"
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f}, {self.rounds} {of}s)"

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """The summary of one ratio per round."""
        logs = [math.log(one) for one in ratios]
        interval = mean_interval(logs)
        return cls(
            median=math.exp(statistics.median(logs)),
            low=math.exp(interval.low) if interval else None,
            high=math.exp(interval.high) if interval else None,
            rounds=len(logs),
        )


@dataclass(slots=True)
class Interleaved:
    """Rates of several settings, measured in turns."""

    entries: list[Settings]
    rounds: list[list[float]] = field(default_factory=list)
    """Samples per second of each entry, by round."""
    others_cores: list[float] = field(default_factory=list)
    """Most CPU cores' worth that other processes used in a lap, by round."""

    def rate(self, entry: Settings) -> float:
        """Geometric mean over the rounds."""
        number = self.entries.index(entry)
        return statistics.geometric_mean(rates[number] for rates in self._kept)

    def ratio(self, entry: Settings, other: Settings) -> Ratio:
        """``entry`` over ``other``, paired by round."""
        top, bottom = self.entries.index(entry), self.entries.index(other)
        return Ratio.of([rates[top] / rates[bottom] for rates in self._kept])

    @property
    def disturbed(self) -> int:
        """Rounds in which other processes used the CPU."""
        return sum(cores > OTHERS_CORES for cores in self.others_cores)

    @property
    def _kept(self) -> list[list[float]]:
        """The undisturbed rounds, if they are half of all at least: a choice that does not look at the rates."""
        quiet = [r for r, cores in zip(self.rounds, self.others_cores, strict=True) if cores <= OTHERS_CORES]
        return quiet if 2 * len(quiet) >= len(self.rounds) else self.rounds

    def to_json(self) -> dict[str, Any]:
        """All raw rates."""
        entries = [entry.to_json() for entry in self.entries]
        return {"entries": entries, "samples_per_s": self.rounds, "others_cores": self.others_cores}


def interleave(run: Run, entries: Sequence[Settings], *, rounds: int = 6, lap_s: float = 1.5) -> Interleaved:
    """Laps of all entries in turns, the order reversed each round; one untimed lap of each comes first.

    Args:
        run: Answers lap probes. Three entries at most stay alive between their laps.
        entries: Two or more settings; what occurs twice runs once.
        rounds: Undisturbed rounds wanted; at most four more are run for disturbed ones.
        lap_s: Length of a lap.

    Raises:
        LapFailed: One of them does not run.
    """
    laps = Interleaved(list(dict.fromkeys(entries)))
    for entry in laps.entries:
        _lap(run, entry, lap_s=lap_s, seed=0, deadline_s=_FIRST_DEADLINE_S)
    number = 0
    while number - laps.disturbed < rounds and number < rounds + _EXTRA_ROUNDS:
        order = laps.entries if number % 2 == 0 else laps.entries[::-1]
        measured = {entry: _lap(run, entry, lap_s=lap_s, seed=number + 1) for entry in order}
        laps.rounds.append([measured[entry].samples_per_s for entry in laps.entries])
        laps.others_cores.append(max(one.others_cores or 0.0 for one in measured.values()))
        number += 1
    return laps


def _lap(run: Run, entry: Settings, *, lap_s: float, seed: int, deadline_s: float = _LAP_DEADLINE_S) -> Measured:
    outcome = run(Probe(kind="lap", settings=entry, window_s=lap_s, deadline_s=deadline_s, seed=seed))
    if isinstance(outcome, Measured) and outcome.samples_per_s > 0:
        return outcome
    raise LapFailed(f"{entry} does not run in the race: {outcome}")


def described(settings: Settings, baseline: Settings) -> str:
    """What differs from the baseline, in a few words."""
    changes = baseline.differences(settings)
    named = {
        name: value for name, (_, value) in changes.items() if name not in ("prefetch_factor", "persistent_workers")
    }
    return ", ".join(f"{name}={value}" for name, value in named.items()) or "the baseline"
