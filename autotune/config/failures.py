"""Trials that failed, named for people."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Rejected, TimedOut
from autotune.settings import Settings

__all__ = ["failed_trials"]

_MOST_NAMED = 4
_MOST_LETTERS = 120


def failed_trials(outcomes: Sequence[Outcome], baseline: Settings) -> list[str]:
    """One sentence that names the trials that failed, or none.

    Args:
        outcomes: All outcomes of the run.
        baseline: Against which settings are named.
    """
    failed = [one for one in outcomes if not isinstance(one, Measured)]
    if not failed:
        return []
    named = list(dict.fromkeys(f"{_changes(one.settings, baseline)}: {_fate(one)}" for one in failed))
    more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    count = f"{len(failed)} of {len(outcomes)} trials"
    return [f"{count} failed and harmed nothing. {'; '.join(named[:_MOST_NAMED])}{more}."]


def _changes(settings: Settings, baseline: Settings) -> str:
    changes = baseline.differences(settings)
    return ", ".join(f"{name}={value}" for name, (_, value) in changes.items()) or "the baseline"


def _fate(outcome: Outcome) -> str:
    match outcome:
        case OutOfMemory():
            return f"out of memory ({outcome.where})"
        case TimedOut():
            return f"not done after {outcome.deadline_s:.0f} s"
        case Crashed():
            return f"its process ended with exit code {outcome.exit_code}"
        case Rejected():
            text = " ".join(outcome.reason.split()).rstrip(".")
            return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
    return outcome.fate
