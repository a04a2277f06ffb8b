"""The training rate as the clock sees it, held against what was promised."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable

__all__ = ["SlowTrainingWarning", "TrainingRate"]

WINDOW_CALLS = 50
"""Calls per window: long enough to cover loader rounds and the accelerator's queue, short enough to notice soon."""

TOLERATED_SHARE = 0.9
"""Of the promised rate; less is slow."""

WINDOWS_TO_WARN = 3
"""Consecutive slow windows before it is said: one may hold compilation, another a checkpoint."""


class SlowTrainingWarning(RuntimeWarning):
    """Training stays below 0.9 of the rate that was measured while tuning."""


class TrainingRate:
    """Samples per second over the last calls, from one end of a call to the next (waiting for data included).

    No synchronisation: an accelerator's queue is bounded, so over a window the host runs at the device's pace.

    Args:
        clock: Seconds, monotonic.
        promised_samples_per_s: Warn once when the rate stays below 0.9 of this; None: never.
    """

    def __init__(self, clock: Callable[[], float], promised_samples_per_s: float | None) -> None:
        self._clock = clock
        self._promised = promised_samples_per_s
        self._spans: deque[tuple[int, float]] = deque(maxlen=WINDOW_CALLS)
        self._last: float | None = None
        self._new_spans = 0
        self._slow_windows = 0
        self._warned = False

    @property
    def samples_per_s(self) -> float | None:
        """Over the last calls, 50 at most; None before the second call."""
        seconds = sum(span for _, span in self._spans)
        return sum(rows for rows, _ in self._spans) / seconds if seconds > 0 else None

    def record(self, rows: int) -> None:
        """A call on ``rows`` samples ends now; the first one after a pause has no beginning and does not count."""
        now = self._clock()
        if self._last is not None:
            self._spans.append((rows, now - self._last))
            self._new_spans += 1
        self._last = now
        if self._new_spans == WINDOW_CALLS:
            self._new_spans = 0
            self._judge()

    def pause(self) -> None:
        """What happens until the next call (validation, a checkpoint) is not training."""
        self._last = None

    def _judge(self) -> None:
        rate = self.samples_per_s
        if self._promised is None or rate is None or self._warned:
            return
        self._slow_windows = self._slow_windows + 1 if rate < TOLERATED_SHARE * self._promised else 0
        if self._slow_windows == WINDOWS_TO_WARN:
            self._warned = True
            warnings.warn(
                f"Training runs at {rate:.4g} samples/s; {self._promised:.4g} were measured while tuning. "
                "Something else may be using the machine, or the data or model has changed; tune again if it stays.",
                SlowTrainingWarning,
                stacklevel=4,
            )
