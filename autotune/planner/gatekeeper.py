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
        self._checked: set[str] = set()

    def forbids_precision(self, outcome: Outcome) -> bool:
        """Whether the precision of a promising trial alone spoils the numbers, on which all else would be built."""
        search, baseline = self._search, self._search.candidates.baseline
        precision = outcome.settings.precision
        if precision == baseline.precision or precision in self._checked or not self._leads(outcome):
            return False
        self._checked.add(precision)
        alone = baseline.replace(precision=precision, batch_size=outcome.settings.batch_size)
        refusal = self._refusal(alone)
        if refusal is not None:
            search.forbid("precision", precision, refusal)
        return refusal is not None

    def winner(self, *, same_batch: bool) -> Measured | None:
        """The fastest setting whose numbers hold; None if that is the baseline."""
        search = self._search
        for measured in search.ledger.ranked(same_batch=same_batch):
            if measured.settings == search.candidates.baseline:
                return None
            refusal = self._refusal(measured.settings) or search.worst.refusal(measured.settings)
            if refusal is None:
                return measured
            search.ledger.ban(measured.settings, refusal)
            if refusal not in search.warnings:
                search.warnings.append(refusal)
        return None

    def _leads(self, outcome: Outcome) -> bool:
        if not isinstance(outcome, Measured) or outcome.cut:
            return False
        if outcome.kind == "joint":
            best = self._search.ledger.best
            return best is not None and best.settings == outcome.settings
        fastest = self._search.ledger.fastest_part("compute")
        return outcome.kind == "compute" and fastest is not None and fastest.settings == outcome.settings

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
