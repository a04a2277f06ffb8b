"""Turns what a run does into progress events, for whoever the caller named."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Literal

from autotune.measurement import Measured, Outcome
from autotune.report.progress import LiveProgress, Progress

__all__ = ["Narrator", "ProgressOption"]

ProgressOption = Callable[[Progress], object] | Literal[False] | None
"""None: a live line if stderr is a terminal; False: silent; a callable gets each event."""


_ALONE = {"compute": "the step alone, ", "loader": "the loader alone, "}


class Narrator:
    """Sends progress events while entered.

    Args:
        progress: Who is told.
        budget_s: The whole budget.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, progress: ProgressOption, budget_s: float, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._progress, self._budget_s, self._clock = progress, budget_s, clock
        self._began_s = clock()
        self._best: float | None = None
        self._stack = contextlib.ExitStack()
        self._tell: Callable[[Progress], object] | None = None
        self.warnings: list[str] = []
        """What went wrong on the way, for the result."""

    def __enter__(self) -> Narrator:
        if self._progress is None and _terminal():
            self._tell = self._stack.enter_context(LiveProgress())
        elif callable(self._progress):
            self._tell = self._progress
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def say(self, phase: str, message: str) -> None:
        """Sends one event."""
        if self._tell is None:
            return
        event = Progress(
            elapsed_s=self._clock() - self._began_s,
            budget_s=self._budget_s,
            phase=phase,
            message=message,
            best_samples_per_s=self._best,
        )
        try:
            self._tell(event)
        except Exception as error:
            self._tell = None
            self.warnings.append(f"progress raised {type(error).__name__}: {error}; it was told nothing more.")

    def trial(self, outcome: Outcome) -> None:
        """Tells of a finished trial."""
        if isinstance(outcome, Measured) and outcome.kind == "joint" and not outcome.cut:
            self._best = max(self._best or 0.0, outcome.samples_per_s)
        self.say("search", sentence(outcome))

    def lap(self, outcome: Outcome) -> None:
        """Tells of a finished race lap."""
        self.say("race", sentence(outcome))


def _terminal() -> bool:
    """Whether stderr is an open terminal."""
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def sentence(outcome: Outcome) -> str:
    """One line on an outcome, for people."""
    settings = outcome.settings
    steps = settings.gradient_accumulation_steps
    flags = {
        "channels_last": settings.channels_last,
        "pinned": settings.pin_memory,
        "grouped by length": settings.length_grouped,
        "activations recomputed": settings.activation_checkpointing,
        f"compiled ({settings.compile_mode}, {settings.compile_scope})": settings.compile_mode is not None,
    }
    parts = [
        f"batch {settings.batch_size or 'own'}{f' x {steps}' if steps > 1 else ''}",
        _counted(settings.num_workers, "worker"),
        _counted(settings.num_threads, "thread") if settings.num_threads else "default threads",
        settings.precision,
        *(name for name, on in flags.items() if on),
        *([settings.optimizer_implementation] if settings.optimizer_implementation else []),
    ]
    return f"{_ALONE.get(outcome.kind, '')}{', '.join(parts)}: {_result(outcome)}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _result(outcome: Outcome) -> str:
    if not isinstance(outcome, Measured):
        return outcome.fate
    if outcome.kind == "numerics":
        error = "not finite" if outcome.loss_error is None else f"{outcome.loss_error:.2e} off fp32's"
        return f"loss {error}"
    return f"{outcome.samples_per_s:,.0f} samples/s{' (cut short)' if outcome.cut else ''}"
