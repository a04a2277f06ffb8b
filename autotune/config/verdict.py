"""From what was found to what is returned: the settings that won their race, or the baseline, and why."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from autotune.config.evidence import Evidence, Speedup
from autotune.config.shared_machine import DOUBT, OTHERS_CORES
from autotune.measurement import Measured, Outcome
from autotune.planner import Found
from autotune.race import RaceResult
from autotune.settings import Settings

__all__ = ["Verdict", "judge"]

_LOADING_BOUND = 0.4  # of the time spent waiting for data: the loader is what limits
_COMPUTE_BOUND = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is returned, with and without a changed batch."""

    settings: Settings
    evidence: Evidence
    same_batch_settings: Settings
    same_batch_evidence: Evidence


def judge(
    baseline: Settings,
    found: Found,
    races: Sequence[RaceResult],
    *,
    outcomes: Sequence[Outcome],
    dropped: Mapping[str, str],
    warnings: Sequence[str],
    spent_s: Mapping[str, float],
    interrupted: bool = False,
) -> Verdict:
    """Applies the one rule: nothing ships that did not win its race against the baseline.

    Args:
        baseline: Settings of the baseline.
        found: What the search left.
        races: One result per finalist that raced.
        outcomes: All outcomes, for the largest batch that ran.
        dropped: Knobs not varied, with reasons.
        warnings: What the user should know.
        spent_s: Where the budget went.
        interrupted: Ctrl-C ended the run early.
    """
    shared = _Shared(
        found=found,
        dropped={**dropped, **found.skipped},
        warnings=tuple(dict.fromkeys((*found.warnings, *warnings, *_doubts(races, outcomes)))),
        spent_s=spent_s,
        trials=len(outcomes),
        largest_batch=_largest(outcomes),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        outcomes=outcomes,
    )
    same_races = [race for race in races if race.candidate.effective_batch_size == baseline.effective_batch_size]
    same_best, best = _fastest(same_races), _fastest(races)
    tried = len({one.settings for one in outcomes if one.kind == "joint"} - {baseline})
    return Verdict(
        settings=_settings(best, baseline),
        evidence=shared.evidence(baseline, best, same_best, _why_kept(found, best, interrupted, tried)),
        same_batch_settings=_settings(same_best, baseline),
        same_batch_evidence=shared.evidence(
            baseline, same_best, same_best, _why_kept(found, same_best, interrupted, tried)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    found: Found
    dropped: Mapping[str, str]
    warnings: tuple[str, ...]
    spent_s: Mapping[str, float]
    trials: int
    largest_batch: int | None
    created: str
    outcomes: Sequence[Outcome]

    def evidence(
        self, baseline: Settings, race: RaceResult | None, same_race: RaceResult | None, why_kept: str
    ) -> Evidence:
        won = race if race is not None and race.wins else None
        settings = _settings(race, baseline)
        data = self.found.data
        measured = _measured(self.outcomes, settings)
        reason = f"won the race over {won.rounds} rounds" if won else why_kept
        return Evidence(
            kept_baseline=won is None,
            reason=f"{reason}; {_bound(measured, self.found)}" if measured else reason,
            speedup=_speedup(race),
            speedup_same_batch=_speedup(same_race),
            samples_per_s=statistics.median(won.candidate_samples_per_s) if won else _rate(self.found.baseline),
            baseline_samples_per_s=(
                statistics.median(won.baseline_samples_per_s) if won else _rate(self.found.baseline)
            ),
            upper_bound_samples_per_s=_upper_bound(self.found, measured),
            largest_batch=self.largest_batch,
            data_wait_share=measured.data_wait_share if measured else None,
            tokens_per_sample=data.mean_length if data else None,
            padding_share=data.padding_share if data else None,
            samples_seen=data.seen if data else None,
            dropped_knobs=self.dropped,
            warnings=self.warnings,
            spent_s=self.spent_s,
            trials=self.trials,
            created=self.created,
        )


def _doubts(races: Sequence[RaceResult], outcomes: Sequence[Outcome]) -> list[str]:
    others = max((race.others_cores or 0.0 for race in races), default=0.0)
    said = []
    if others > OTHERS_CORES:
        said.append(
            f"{DOUBT} up to {others:.1f} cores during the race: intervals are wider for it, and the ratio "
            "is that of a machine under such load."
        )
    searched = [one.others_cores or 0.0 for one in outcomes if isinstance(one, Measured) and one.kind == "joint"]
    usual = statistics.median(searched) if searched else 0.0
    if usual > OTHERS_CORES:
        said.append(
            f"{DOUBT} {usual:.1f} cores in half of the search's trials or more: rates are those of a "
            "machine under such load."
        )
    if any(race.noisy for race in races):
        said.append("The machine was too noisy to decide: run again when it is quieter, or with a larger budget.")
    return said


def _fastest(races: Sequence[RaceResult]) -> RaceResult | None:
    """A winner before a loser, then the higher median."""
    return max(races, key=lambda race: (race.wins, race.median or 0.0), default=None)


def _settings(race: RaceResult | None, baseline: Settings) -> Settings:
    return race.candidate if race is not None and race.wins else baseline


def _nothing_faster(found: Found, tried: int) -> str:
    if not tried:
        return f"nothing else could be tried, {found.stopped}; give a larger time_budget_s"
    return f"none of the {tried} other settings tried was faster; {found.stopped}"


def _why_kept(found: Found, race: RaceResult | None, interrupted: bool, tried: int) -> str:
    if interrupted:
        return "baseline kept: interrupted before anything was proven faster"
    if found.baseline is None:
        return f"not tuned: {found.stopped}; give a larger time_budget_s"
    if not found.finalists:
        return f"baseline kept: {_nothing_faster(found, tried)}"
    if race is None:
        return f"baseline kept: nothing else was raced, {found.stopped}"
    return f"baseline kept: {_lost(race)}{_unproven(found, race)}"


def _lost(race: RaceResult) -> str:
    if race.undecided is not None or race.median is None or race.low is None:
        why = (race.undecided or "too few rounds to decide").rstrip(".")
        return why[:1].lower() + why[1:]
    noise = "; the machine was too noisy to tell" if race.noisy else ""
    return (
        f"the fastest other setting raced at {race.median:.2f}x, of which only {race.low:.2f}x is certain "
        f"(needed: above {1 + race.margin:.2f}x){noise}"
    )


def _unproven(found: Found, race: RaceResult) -> str:
    """What the search saw of a setting whose race was not decided."""
    seen = next((one for one in found.finalists if one.settings == race.candidate), None)
    if race.undecided is None or seen is None or found.baseline is None or not found.baseline.samples_per_s:
        return ""
    changes = found.baseline.settings.differences(seen.settings)
    knobs = ", ".join(f"{name}={value}" for name, (_, value) in changes.items())
    ratio = seen.samples_per_s / found.baseline.samples_per_s
    return f"; the search saw {ratio:.2f}x with {knobs}, which is not proven: give a larger time_budget_s"


def _bound(measured: Measured, found: Found) -> str:
    wait = measured.data_wait_share or 0.0
    parts = [
        f"{name} can give {part.samples_per_s:,.0f}/s"
        for name, part in (("the loader", found.loader), ("the step", found.compute))
        if part is not None and part.samples_per_s >= measured.samples_per_s  # else they were looked at in worse times
    ]
    apart = f"; alone {' and '.join(parts)}" if parts else ""
    if wait >= _LOADING_BOUND:
        return (
            f"bound by loading (data wait {wait:.0%}{apart}): cache or shrink what __getitem__ decodes, or give more "
            "cores"
        )
    if wait <= _COMPUTE_BOUND:
        return f"bound by the training step (data wait {wait:.0%}{apart}): a faster device or model would help"
    return f"loading and training step take turns as the limit (data wait {wait:.0%}{apart})"


def _upper_bound(found: Found, measured: Measured | None) -> float | None:
    """What loader and step could reach if neither ever waited for the other; None where a measurement refutes it."""
    rates = [part.samples_per_s for part in (found.compute, found.loader) if part is not None]
    bound = min(rates, default=None)
    refuted = bound is not None and measured is not None and measured.samples_per_s > bound
    return None if refuted else bound


def _speedup(race: RaceResult | None) -> Speedup | None:
    if race is None or race.median is None or race.low is None or race.high is None:
        return None
    return Speedup(
        median=race.median,
        low=race.low,
        high=race.high,
        rounds=race.rounds,
        laps=tuple(zip(race.baseline_samples_per_s, race.candidate_samples_per_s, strict=True)),
        others_cores=race.others_cores,
    )


def _rate(measured: Measured | None) -> float | None:
    return measured.samples_per_s if measured else None


def _measured(outcomes: Sequence[Outcome], settings: Settings) -> Measured | None:
    found = [
        one
        for one in outcomes
        if isinstance(one, Measured) and one.settings == settings and one.kind in ("joint", "lap")
    ]
    return found[-1] if found else None


def _largest(outcomes: Sequence[Outcome]) -> int | None:
    return max((one.largest_batch_rows for one in outcomes if isinstance(one, Measured)), default=0) or None
