"""Who asks the numerics gate, and when: a precision as soon as it is about to be built upon, finalists at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from autotune.measurement import Measured, Outcome, Probe, TimedOut
from autotune.planner.gate import compared_as, numerics_refusal
from autotune.planner.ledger import Ledger
from autotune.planner.pace import Pace
from autotune.planner.worst_case import WorstCases
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["Gatekeeper"]

_LEAST_S = 1.0


class _Search(Protocol):
    candidates: Candidates
    pace: Pace
    ledger: Ledger
    warnings: list[str]
    worst: WorstCases

    def asked(self, probe: Probe) -> Outcome: ...
    def until_end_s(self) -> float: ...
    def forbid(self, knob: str, value: object, reason: str) -> None: ...


class Gatekeeper:
    """Lets settings through whose numbers hold.

    Args:
        search: What is looked at, and where probes are asked and refusals written down.
    """

    def __init__(self, search: _Search) -> None:
        self._search = search

    def refuses(self, outcome: Outcome) -> bool:
        """Whether the numbers of a setting that now leads, on which all else would be built, do not hold.

        Where its precision alone is at fault, that precision is not tried again.
        """
        search, baseline = self._search, self._search.candidates.baseline
        settings = outcome.settings
        if settings == baseline or not self._leads(outcome):
            return False
        refusal = self._refusal(settings)
        if refusal is None:
            return False
        alone = baseline.replace(precision=settings.precision, batch_size=settings.batch_size)
        if settings.precision != baseline.precision and self._refusal(alone) is not None:
            search.forbid("precision", settings.precision, refusal)
        else:
            search.ledger.ban(settings, refusal)
        return True

    def winner(self, *, same_batch: bool) -> Measured | None:
        """The fastest setting whose numbers hold; None if that is the baseline."""
        search = self._search
        for measured in self._simplest_first(search.ledger.ranked(same_batch=same_batch)):
            if measured.settings == search.candidates.baseline:
                return None
            refusal = self._refusal(measured.settings) or search.worst.refusal(measured.settings)
            if refusal is None:
                return measured
            search.ledger.ban(measured.settings, refusal)
            if refusal not in search.warnings:
                search.warnings.append(refusal)
        return None

    def _simplest_first(self, ranked: list[Measured]) -> list[Measured]:
        """Ties go to fewer workers, no compilation, fp32: what is within noise of the fastest with its batch."""
        if not ranked or not ranked[0].samples_per_s:
            return ranked
        line = (1 - self._search.pace.tie_share) * self._search.ledger.score(ranked[0])
        batch = ranked[0].settings.effective_batch_size
        level = [one for one in ranked if self._search.ledger.score(one) >= line]
        alike = sorted((one for one in level if one.settings.effective_batch_size == batch), key=_complexity)
        return alike + [one for one in ranked if one not in alike]

    def _leads(self, outcome: Outcome) -> bool:
        if not isinstance(outcome, Measured) or outcome.cut:
            return False
        best = self._search.ledger.best
        return outcome.kind == "joint" and best is not None and best.settings == outcome.settings

    def _refusal(self, settings: Settings) -> str | None:
        # Half of what is left at most: however many comparisons hang, the budget holds.
        deadline_s = min(self._search.pace.trial_cap_s, self._search.until_end_s() / 2)
        baseline = self._search.candidates.baseline
        eager = settings.replace(compile_mode=None, compile_scope=baseline.compile_scope)
        refusal = numerics_refusal(eager, baseline, run=self._compared, deadline_s=deadline_s)
        if refusal is None and settings != eager:
            refusal = numerics_refusal(settings, baseline, run=self._compared, deadline_s=deadline_s)
        if refusal is not None and refusal not in self._search.warnings:
            self._search.warnings.append(refusal)
        return refusal

    def _compared(self, probe: Probe) -> Outcome:
        """Asked once for settings that compute the same numbers; what hung is not asked again in another batch size."""
        ledger = self._search.ledger
        settings = compared_as(probe.settings, self._search.candidates.baseline)
        known = ledger.parts.get(("numerics", settings)) or ledger.hung_comparison(settings)
        if known is not None:
            return known
        if probe.deadline_s < _LEAST_S:
            return TimedOut(kind="numerics", settings=settings, deadline_s=max(0.0, probe.deadline_s))
        return self._search.asked(replace(probe, settings=settings))


def _complexity(measured: Measured) -> tuple[int, bool, bool]:
    one = measured.settings
    return one.num_workers, one.compile_mode is not None, one.precision != "fp32"
