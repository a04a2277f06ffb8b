"""What was tried so far and what it gave: the plan's view of the study."""

from __future__ import annotations

import math
from collections.abc import Callable

from autotune.measurement import Measured, Outcome
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["Ledger"]

_TIE = 0.002  # of the rate, per worker or change of numerics: decides ties only


class Ledger:
    """Outcomes of joint trials, and the best of those that may be returned.

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
        self.banned: dict[Settings, str] = {}

    def add(self, outcome: Outcome) -> None:
        """Notes the outcome of a joint trial."""
        self.outcomes[outcome.settings] = outcome

    def ban(self, settings: Settings, reason: str) -> None:
        """Takes a measured setting out of the running."""
        self.banned[settings] = reason

    @property
    def baseline(self) -> Measured | None:
        """The baseline's measurement."""
        outcome = self.outcomes.get(self._candidates.baseline)
        return outcome if isinstance(outcome, Measured) else None

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
        return sorted(found, key=lambda measured: -self._score(measured))

    @property
    def best(self) -> Measured | None:
        """The fastest setting that may be returned."""
        ranked = self.ranked()
        return ranked[0] if ranked else None

    def _score(self, measured: Measured) -> float:
        """The rate, less what a larger batch and (as a tie-break) more processes and other numerics have to earn."""
        settings, baseline = measured.settings, self._candidates.baseline
        doublings: float = 0.0
        if settings.effective_batch_size and baseline.effective_batch_size:
            doublings = max(0.0, math.log2(settings.effective_batch_size / baseline.effective_batch_size))
        ties = settings.num_workers + (settings.precision != "fp32") + (settings.compile_mode is not None)
        handicap: float = (1 + self._batch_gain) ** doublings * (1 + _TIE) ** ties
        return measured.samples_per_s / handicap
