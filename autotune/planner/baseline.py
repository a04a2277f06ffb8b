"""The baseline's own measurement, and what becomes of one that does not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from autotune.errors import DoesNotFitError, TaskError
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.planner.pace import Pace
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["measure_baseline"]

_LEAST_S = 1.0


class _Search(Protocol):
    candidates: Candidates
    pace: Pace
    warnings: list[str]
    seed: int

    @property
    def ask(self) -> Callable[[Probe], Outcome]: ...
    def until_end_s(self) -> float: ...
    def stop(self, reason: str) -> None: ...
    def rebase(self, baseline: Settings) -> None: ...
    def record(self, outcome: Outcome) -> Outcome: ...


def measure_baseline(search: _Search) -> Measured | None:
    """Measures the baseline, halving its micro-batch until it fits; None where the time does not suffice.

    Raises:
        TaskError: It cannot be trained.
        DoesNotFitError: Not even one row fits.
    """
    while True:
        left_s = search.until_end_s()
        if left_s < _LEAST_S:
            search.stop("the time was over before the baseline could be measured")
            return None
        outcome = search.record(search.ask(_probe(search, left_s)))
        match outcome:
            case Measured():
                return outcome
            case TimedOut():
                search.stop(f"the baseline did not get through its first window in {outcome.deadline_s:.0f} s")
                return None
            case OutOfMemory():
                _halve(search, outcome)
            case Rejected() | Crashed():
                raise _error(outcome)


def _probe(search: _Search, left_s: float) -> Probe:
    return Probe(
        kind="joint",
        settings=search.candidates.baseline,
        window_s=min(search.pace.baseline_window_s, left_s / 8),
        deadline_s=left_s,
        seed=search.seed,
    )


def _halve(search: _Search, outcome: OutOfMemory) -> None:
    settings = search.candidates.baseline
    batch = settings.batch_size
    if batch is None or batch == 1:
        raise DoesNotFitError(
            f"Not even {'a batch of one' if batch else 'your own batch'} fits in memory: {outcome.message}",
            "Use a smaller model or smaller samples, or a machine with more memory.",
        )
    effective = batch * settings.gradient_accumulation_steps
    smaller = next(size for size in range(batch // 2, 0, -1) if effective % size == 0)
    search.warnings.append(
        f"Batch {batch} does not fit in memory ({outcome.where}): the baseline is batch {smaller} with "
        f"{effective // smaller} accumulation steps, the same effective batch."
    )
    search.rebase(settings.replace(batch_size=smaller, gradient_accumulation_steps=effective // smaller))


def _error(outcome: Rejected | Crashed) -> TaskError:
    if isinstance(outcome, Rejected):
        trace = f"\n{outcome.traceback}" if outcome.traceback else ""
        return TaskError(
            f"Your own setting does not train: {outcome.reason}", f"Nothing was tuned; mend this first.{trace}"
        )
    return TaskError(
        f"The process died while it trained your own setting (exit code {outcome.exit_code}).",
        f"Its last output:\n{outcome.output_tail}",
    )
