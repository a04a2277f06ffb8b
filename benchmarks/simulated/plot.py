"""The score of what is held for the best against the time spent; needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.simulated.summary import GROUPS
from benchmarks.simulated.trace import Score

__all__ = ["plot", "score_at"]

_POINTS = 200


def score_at(score: Score, at_s: float, before: float) -> float:
    """What was held for the best at a moment.

    Args:
        score: The run.
        at_s: Seconds since it began.
        before: The score as long as nothing was measured: the baseline's.
    """
    held = [value for since_s, value in score.curve if since_s <= at_s]
    return held[-1] if held else before


def plot(scores: Sequence[Score], file: Path) -> None:
    """Median and lowest tenth of the runs with the longest budget, by kind of machine and strategy."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    longest = max(one.budget_s for one in scores)
    times = np.linspace(0.0, longest, _POINTS)
    figure, axes = pyplot.subplots(1, len(GROUPS), figsize=(12, 5), sharey=True)
    for axis, (group, belongs) in zip(axes, GROUPS, strict=True):
        for strategy in dict.fromkeys(one.strategy for one in scores):
            some = [one for one in scores if one.strategy == strategy and belongs(one) and one.budget_s == longest]
            if some:
                values = [[score_at(one, at_s, one.score / one.against_baseline) for at_s in times] for one in some]
                drawn = axis.plot(times, np.median(values, axis=0), label=strategy)[0]
                axis.plot(times, np.quantile(values, 0.1, axis=0), ":", color=drawn.get_color())
        axis.set(title=f"{group}: median, and lowest tenth (dotted)", xlabel="seconds spent (simulated)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("true rate of the best so far / optimum")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(file)
