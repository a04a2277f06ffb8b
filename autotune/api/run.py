"""Search and race within one sandbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from autotune.measurement import Outcome, Probe
from autotune.planner import Found, Pace, Plan, affordable, rounds_wanted
from autotune.race import RaceResult, race
from autotune.report.narrator import Narrator
from autotune.sandbox import InProcess, Sandbox
from autotune.settings import Settings
from autotune.study import Study

__all__ = ["Run"]


@dataclass(kw_only=True)
class Run:
    """Search and race within one sandbox; survives Ctrl-C with what was proven until then."""

    plan: Plan
    run: Callable[[Probe], Outcome]
    """Answers race laps."""
    sandbox: Sandbox | InProcess
    study: Study
    narrator: Narrator
    pace: Pace
    found: Found | None = None
    races: Sequence[RaceResult] = ()
    interrupted: bool = False
    spent_s: dict[str, float] = field(default_factory=dict)

    def go(self) -> None:
        """Fills ``found`` and ``races``."""
        try:
            with self._timed("search"):
                self.found = self.plan.search()
            with self._timed("race"):
                self.races = self._race(self.found)
        except KeyboardInterrupt:
            self.interrupted = True
            self.narrator.say("interrupted", "Ctrl-C: only what is proven is returned")

    @property
    def outcome(self) -> Found:
        """What the search left, also where it was interrupted."""
        return self.found or Found(baseline=self.plan.ledger.baseline, finalists=(), stopped="interrupted")

    def _race(self, found: Found) -> list[RaceResult]:
        if found.baseline is None or not found.finalists:
            return []
        left_s = self.plan.until_end_s(starting=False)
        finalists = [one.settings for one in affordable(left_s, self.pace, found.baseline, found.finalists)]
        self.narrator.say(
            "race", f"racing {len(finalists)} finalist{'s' * (len(finalists) > 1)} against the baseline, interleaved"
        )
        results: list[RaceResult] = []
        for heat in _heats(finalists):
            results += race(
                found.baseline.settings,
                heat,
                run=self._lap,
                clock=self.plan.clock,
                budget_s=self.plan.until_end_s(starting=False),
                margin=self.pace.margin,
                max_rounds=max(self._rounds(found, settings) for settings in heat),
                seed=self.plan.seed,
            )
        return results

    def _rounds(self, found: Found, settings: Settings) -> int:
        seen = next(one for one in found.finalists if one.settings == settings)
        baseline = found.baseline.samples_per_s if found.baseline else 0.0
        return rounds_wanted(seen.samples_per_s / max(baseline, 1e-9), self.pace)

    def _lap(self, probe: Probe) -> Outcome:
        outcome = self.run(probe)
        self.study.record(outcome)
        self.narrator.lap(outcome)
        return outcome

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spent_s[name] = time.perf_counter() - began


def _heats(finalists: list[Settings]) -> list[list[Settings]]:
    """All at once; two compiled settings one after the other, since only one keeps its graphs."""
    compiled = [settings for settings in finalists if settings.compile_mode is not None]
    return [[settings] for settings in finalists] if len(compiled) > 1 else [finalists]
