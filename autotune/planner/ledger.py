"""What was tried so far and what it gave: the plan's view of the study."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.measurement import Measured, Outcome, OutOfMemory, ProbeKind, TimedOut
from autotune.planner.gate import CHANGES_NUMBERS
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["Ledger"]

_TIE = 0.002  # of the rate, per worker or change of numerics: decides ties only


class Ledger:
    """Outcomes of trials, and the best of the joint ones that may be returned.

    Args:
        candidates: Rules and baseline.
        fits: Whether a measured setting leaves the memory margin free.
        batch_gain: What each doubling of the effective batch must gain to be worth the change in training.
    """

    def __init__(self, candidates: Candidates, fits: Callable[[Measured], bool], *, batch_gain: float = 0.04) -> None:
        self._candidates = candidates
        self._fits = fits
        self._batch_gain = batch_gain
        self.outcomes: dict[Settings, Outcome] = {}
        self.parts: dict[tuple[ProbeKind, Settings], Outcome] = {}
        self.banned: dict[Settings, str] = {}
        self.looks: dict[Settings, list[Measured]] = {}

    def add(self, outcome: Outcome) -> None:
        """Notes an outcome; of several looks at a setting, the one in the middle (of two, the lower) counts."""
        if outcome.kind == "joint":
            looks = self.looks.setdefault(outcome.settings, [])
            if isinstance(outcome, Measured):
                looks.append(outcome)
                looks.sort(key=lambda look: look.samples_per_s)
            self.outcomes[outcome.settings] = looks[(len(looks) - 1) // 2] if looks else outcome
        else:
            self.parts[outcome.kind, outcome.settings] = outcome

    def tried(self, kind: ProbeKind, settings: Settings) -> bool:
        """Whether this was asked before."""
        return settings in self.outcomes if kind == "joint" else (kind, settings) in self.parts

    def ban(self, settings: Settings, reason: str) -> None:
        """Takes a measured setting out of the running."""
        self.banned[settings] = reason

    def too_large(self, settings: Settings) -> bool:
        """Whether no larger a batch ran out of memory under settings that need as much a row, and none so large ran.

        A failure of RAM with more workers does not count: it may have been theirs.
        """
        trials = [*self.outcomes.values(), *self.parts.values()]
        alike = [one for one in trials if one.settings.batch_size and _alike(one.settings, settings)]
        wanted = settings.batch_size or 0
        full = any(
            isinstance(one, OutOfMemory)
            and one.where != "shared memory"
            and (one.where == "accelerator" or one.settings.num_workers <= settings.num_workers)
            and (one.settings.batch_size or 0) <= wanted
            for one in alike
        )
        ran = any(isinstance(one, Measured) and (one.settings.batch_size or 0) >= wanted for one in alike)
        return full and not ran

    def hopeless(self, knob: str, value: object) -> bool:
        """Whether every trial with this value of a knob failed or was cut."""
        trials = [*self.outcomes.values(), *(one for (kind, _), one in self.parts.items() if kind == "compute")]
        found = [one for one in trials if getattr(one.settings, knob) == value]
        return bool(found) and not any(isinstance(one, Measured) and not one.cut for one in found)

    @property
    def baseline(self) -> Measured | None:
        """The baseline's measurement."""
        outcome = self.outcomes.get(self._candidates.baseline)
        return outcome if isinstance(outcome, Measured) else None

    def part(self, kind: ProbeKind, settings: Settings) -> Measured | None:
        """What a compute or loader probe of these settings measured."""
        outcome = self.parts.get((kind, settings))
        return outcome if isinstance(outcome, Measured) else None

    def hung_comparison(self, settings: Settings) -> TimedOut | None:
        """A comparison with fp32 that hung with the same knobs, as far as they change numbers."""
        for (kind, other), outcome in self.parts.items():
            alike = not set(CHANGES_NUMBERS) & set(settings.differences(other))
            if kind == "numerics" and alike and isinstance(outcome, TimedOut):
                return outcome
        return None

    def fastest_part(self, kind: ProbeKind) -> Measured | None:
        """The fastest compute or loader probe."""
        found = [one for (of, _), one in self.parts.items() if of == kind and isinstance(one, Measured) and not one.cut]
        return max(found, key=lambda one: one.samples_per_s, default=None)

    def ranked(self, *, same_batch: bool = False) -> list[Measured]:
        """Settings that may be returned, fastest first; only those with the baseline's effective batch if asked."""
        effective = self._candidates.baseline.effective_batch_size
        found = [
            outcome
            for outcome in self.outcomes.values()
            if isinstance(outcome, Measured)
            and not outcome.cut
            and outcome.settings not in self.banned
            and (not same_batch or outcome.settings.effective_batch_size == effective)
            and (outcome.settings == self._candidates.baseline or self._fits(outcome))
        ]
        return sorted(found, key=lambda measured: -self.score(measured))

    @property
    def best(self) -> Measured | None:
        """The fastest setting that may be returned."""
        ranked = self.ranked()
        return ranked[0] if ranked else None

    def score(self, measured: Measured) -> float:
        """The rate, less what a larger batch and (as a tie-break) more processes and other numerics have to earn."""
        settings, baseline = measured.settings, self._candidates.baseline
        doublings: float = 0.0
        if settings.effective_batch_size and baseline.effective_batch_size:
            doublings = max(0.0, math.log2(settings.effective_batch_size / baseline.effective_batch_size))
        ties = settings.num_workers + (settings.precision != "fp32") + (settings.compile_mode is not None)
        ties += settings.length_grouped
        handicap: float = (1 + self._batch_gain) ** doublings * (1 + _TIE) ** ties
        return measured.samples_per_s / handicap

    def predicted_bytes(self, settings: Settings) -> float | None:
        """Accelerator memory that a line through smaller batches under the same settings predicts.

        None with fewer than two points. Source: least squares through the two largest measured sizes, which is
        their secant; activations grow linearly with rows, everything else is constant.
        """
        points = sorted(
            (one.settings.batch_size or 0, one.peak_accelerator_bytes)
            for one in (*self.outcomes.values(), *self.parts.values())
            if isinstance(one, Measured)
            and one.peak_accelerator_bytes is not None
            and one.settings.batch_size
            and _alike(one.settings, settings)
        )
        sizes = dict(points)
        if len(sizes) < 2 or settings.batch_size is None:
            return None
        (small, low), (large, high) = sorted(sizes.items())[-2:]
        return high + (settings.batch_size - large) * max(0.0, (high - low) / (large - small))


def _alike(one: Settings, other: Settings) -> bool:
    """Equal in what decides a step's memory per row."""
    names = ("precision", "channels_last", "compile_mode", "compile_scope", "activation_checkpointing")
    return all(getattr(one, name) == getattr(other, name) for name in names)
