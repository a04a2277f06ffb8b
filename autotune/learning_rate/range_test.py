"""The learning-rate range test: from losses along an exponential sweep to a suggestion. Pure.

Where the loss falls fastest per decade of the learning rate, training makes the most progress without being near
divergence yet. The slope is taken against the **logarithm** of the rate: against the rate itself, a step between two
tiny rates is so short that noise there gives the steepest slope, and rates far too low win.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import MissingPackageError, SettingsError

__all__ = [
    "LrCurve",
    "LrSuggestion",
    "diverged_at",
    "linear_slope_suggestion",
    "smoothed",
    "steepest_rate",
    "suggest",
]

Confidence = Literal["high", "medium", "low", "none"]

_WINDOW_DECADES = 1.0  # noise averages out over it, and a fall of the loss takes about as long
_FEWEST_IN_WINDOW = 5
_START = 5  # points whose median is the loss at the start
_RISE = 3.0  # the loss diverged once it is so many falls (start to best) above the start, and twice the start
_DROP_TO_NOISE = 5.0  # a fall below this many standard errors is none: it is that of the extremes of a hundred points
_HIGH_SPREAD, _MEDIUM_SPREAD = 3.0, 10.0  # highest over lowest suggestion of the seeds
_HIGH_SEEDS = 3


@dataclass(frozen=True, slots=True)
class LrCurve:
    """Losses along a sweep of one seed."""

    rates: tuple[float, ...]
    """Learning rates, increasing: of the first parameter group, the others in proportion."""
    losses: tuple[float, ...]
    """Of the optimizer step taken at each; the last may be infinite."""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.rates, self.rates[1:], strict=False))
        if len(self.rates) != len(self.losses) or not rising or (self.rates and self.rates[0] <= 0):
            raise SettingsError("A sweep is as many losses as rates, the rates above 0 and increasing.", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class LrSuggestion:
    """What a range test found."""

    suggestion: float | None
    """Learning rate of the first parameter group: the median over the seeds; None where no loss fell."""
    low: float | None
    """Lowest of the seeds' suggestions."""
    high: float | None
    """Highest of them."""
    curves: tuple[LrCurve, ...]
    confidence: Confidence
    """high: three seeds or more within a factor 3; medium: within 10; low: further apart, or a single seed; none: no
    suggestion."""
    current: float | None = None
    """The rate that was set when this was asked."""
    note: str = ""
    """Why the confidence is no better, and what to keep in mind."""

    def to_json(self) -> dict[str, Any]:
        """JSON values; a loss that is not finite becomes null."""
        curves = [
            {"lr": list(one.rates), "loss": [loss if math.isfinite(loss) else None for loss in one.losses]}
            for one in self.curves
        ]
        numbers = {"suggestion": self.suggestion, "low": self.low, "high": self.high, "current": self.current}
        return {**numbers, "confidence": self.confidence, "note": self.note, "curves": curves}

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Writes a picture of the sweeps: raw points, smoothed losses, the suggestion.

        Args:
            path: File to write; its ending says the format.

        Raises:
            MissingPackageError: matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingPackageError(
                "A plot needs matplotlib, which is not installed.", "Run: pip install 'torch-autotune[plot]'."
            ) from error
        figure = Figure(figsize=(7, 4.5), layout="constrained")
        axes = figure.subplots()
        for seed, curve in enumerate(self.curves):
            seen = curve.losses[: diverged_at(curve.losses)]
            (line,) = axes.plot(curve.rates[: len(seen)], smoothed(curve)[: len(seen)], label=f"seed {seed}")
            axes.plot(curve.rates[: len(seen)], seen, ".", color=line.get_color(), alpha=0.25)
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color="black", label=f"suggestion {self.suggestion:.2g}")
            axes.axvspan(self.low, self.high, color="black", alpha=0.1)
        axes.set(xscale="log", xlabel="learning rate", ylabel="training loss", title=f"confidence: {self.confidence}")
        axes.legend()
        figure.savefig(path)

    def __str__(self) -> str:
        if self.suggestion is None:
            return f"no suggestion. {self.note}".strip()
        seeds = f"{self.low:.2g} to {self.high:.2g} over {len(self.curves)} seeds"
        now = f", now {self.current:.2g}" if self.current is not None else ""
        return f"learning rate {self.suggestion:.2g} ({seeds}; confidence {self.confidence}{now}). {self.note}".strip()


def suggest(curves: Sequence[LrCurve], *, current: float | None = None, note: str = "") -> LrSuggestion:
    """The suggestion of one sweep per seed: the median, on the log scale, of where each falls fastest.

    Args:
        curves: One per seed.
        current: The rate that is set now.
        note: Carried along.

    Source: range test: Smith 2017, "Cyclical Learning Rates for Training Neural Networks" (arXiv:1506.01186), section
    3.3, there of the accuracy along rates that rise linearly; of the loss along rates that rise by a factor: Gugger
    2018, "How Do You Find A Good Learning Rate", who takes a tenth of the rate of the lowest loss. The steepest slope
    against log lr: fastai 2, ``fastai.callback.schedule.steep``. We differ in the smoothing, a symmetric least-squares
    line in place of an exponential average, whose lag moves the suggestion to higher rates.
    """
    found = [rate for rate in map(steepest_rate, curves) if rate is not None]
    if not found:
        why = "The loss fell at no learning rate of the sweep by more than its noise."
        return LrSuggestion(
            suggestion=None,
            low=None,
            high=None,
            curves=tuple(curves),
            confidence="none",
            current=current,
            note=f"{why} {note}".strip(),
        )
    low, high = min(found), max(found)
    confidence, why = _confidence(len(curves), len(found), high / low)
    return LrSuggestion(
        suggestion=math.exp(statistics.median(math.log(rate) for rate in found)),
        low=low,
        high=high,
        curves=tuple(curves),
        confidence=confidence,
        current=current,
        note=" ".join(filter(None, (why, note))),
    )


def steepest_rate(curve: LrCurve) -> float | None:
    """The rate at which the loss falls fastest against log lr; None where it does not fall by more than its noise.

    Args:
        curve: One sweep; what comes after divergence is left out, and so is what comes after the least loss.
    """
    end = diverged_at(curve.losses)
    rates, losses = curve.rates[:end], curve.losses[:end]
    if len(rates) < _FEWEST_IN_WINDOW:
        return None
    logs = [math.log10(rate) for rate in rates]
    lines = [_line(logs, losses, index) for index in range(len(logs))]
    best = min(range(len(lines)), key=lambda index: lines[index][0])
    top = max(range(best + 1), key=lambda index: lines[index][0])
    if lines[top][0] - lines[best][0] <= _DROP_TO_NOISE * math.hypot(lines[top][2], lines[best][2]):
        return None
    return rates[min(range(best + 1), key=lambda index: lines[index][1])]


def smoothed(curve: LrCurve) -> list[float]:
    """The losses, each replaced by the least-squares line over the decade around it (Savitzky & Golay 1964)."""
    end = diverged_at(curve.losses)
    logs = [math.log10(rate) for rate in curve.rates[:end]]
    return [_line(logs, curve.losses[:end], index)[0] for index in range(end)] + list(curve.losses[end:])


def diverged_at(losses: Sequence[float]) -> int:
    """How many losses come before the training diverged: all of them where it did not.

    Divergence is a loss that is not finite, or one that rose above the start by three times what it had fallen (and to
    twice the start, in either sign). A single outlier among lower losses is none: the next one has to be up as well.
    """
    finite = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), len(losses))
    if not finite:
        return 0
    start = statistics.median(losses[: min(_START, finite)])
    best, above = start, 0
    for index in range(finite):
        best = min(best, statistics.median(losses[max(0, index - 2) : index + 1]))
        above = above + 1 if losses[index] > start + max(_RISE * (start - best), abs(start)) else 0
        if above == 2:
            return index - 1
    return finite - above  # an outlier at the very end


def linear_slope_suggestion(curve: LrCurve) -> float:
    """The rule that this one replaces, for comparison only: the steepest slope against the rate itself.

    Args:
        curve: One sweep of 14 points or more.

    Source: Lightning 2.6, ``lightning.pytorch.tuner.lr_finder``: exponential average of the losses with 0.98, the first
    10 points and the last left out, and those that are not finite; then the steepest ``torch.gradient`` with the rates
    as spacing.
    """
    points = zip(curve.rates[10:-1], _averaged(curve.losses)[10:-1], strict=True)
    rates, losses = zip(*((rate, loss) for rate, loss in points if math.isfinite(loss)), strict=True)
    slopes = [_gradient(rates, losses, index) for index in range(len(rates))]
    return float(rates[min(range(len(slopes)), key=slopes.__getitem__)])


def _gradient(x: Sequence[float], y: Sequence[float], index: int) -> float:
    """What ``torch.gradient`` gives at a point: its neighbours' two slopes, the nearer one weighing more."""
    slopes = [
        (y[high] - y[low]) / (x[high] - x[low])
        for low, high in ((index - 1, index), (index, index + 1))
        if low >= 0 and high < len(x)
    ]
    if len(slopes) < 2:
        return slopes[0]
    before, after = x[index] - x[index - 1], x[index + 1] - x[index]
    return (after * slopes[0] + before * slopes[1]) / (before + after)


def _averaged(losses: Sequence[float], beta: float = 0.98) -> list[float]:
    """Lightning's: it divides by 1 - beta^(n + 1) after n losses, so that the first one counts about half."""
    average, found = 0.0, []
    for step, loss in enumerate(losses, start=1):
        average = beta * average + (1 - beta) * loss
        found.append(average / (1 - beta ** (step + 1)))
    return found


def _line(logs: Sequence[float], losses: Sequence[float], index: int) -> tuple[float, float, float]:
    """Value at ``index``, slope, and the value's standard error, of the line through the points around it."""
    near = [i for i in range(len(logs)) if abs(logs[i] - logs[index]) <= _WINDOW_DECADES / 2]
    if len(near) < _FEWEST_IN_WINDOW:
        first = max(0, min(index - _FEWEST_IN_WINDOW // 2, len(logs) - _FEWEST_IN_WINDOW))
        near = list(range(first, first + _FEWEST_IN_WINDOW))
    x0, y0 = statistics.fmean(logs[i] for i in near), statistics.fmean(losses[i] for i in near)
    spread = math.fsum((logs[i] - x0) ** 2 for i in near)
    slope = math.fsum((logs[i] - x0) * (losses[i] - y0) for i in near) / spread
    left = math.fsum((losses[i] - y0 - slope * (logs[i] - x0)) ** 2 for i in near) / (len(near) - 2)
    error = math.sqrt(left * (1 / len(near) + (logs[index] - x0) ** 2 / spread))
    return y0 + slope * (logs[index] - x0), slope, error


def _confidence(seeds: int, fell: int, spread: float) -> tuple[Confidence, str]:
    if seeds == 1:
        return "low", "A single seed cannot tell how much of this is chance."
    if fell < seeds:
        return "low", f"The loss fell in {fell} of {seeds} sweeps only."
    if spread > _MEDIUM_SPREAD:
        return "low", f"The seeds differ by a factor of {spread:.0f}."
    if spread > _HIGH_SPREAD or seeds < _HIGH_SEEDS:
        return "medium", f"{seeds} seeds within a factor of {spread:.1f}."
    return "high", ""
