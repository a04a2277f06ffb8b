"""What ``torch-autotune demo`` does: make the data, tune, train both ways."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.api import tune
from autotune.demo.comparison import Comparison, compare
from autotune.demo.task import demo_task

if TYPE_CHECKING:
    from autotune.config import TunedConfig
    from autotune.report.narrator import ProgressOption

__all__ = ["DEFAULT_TIME_BUDGET_S", "run_demo"]

DEFAULT_TIME_BUDGET_S = 55.0
"""Seconds of tuning."""

_BESIDE_TUNING_S = 85.0
"""All else, data and both trainings; with the default budget the whole demo stays below 150 s."""

_TRAINING_LIMIT_S = (5.0, 30.0)
"""Least and most seconds for each of the two trainings."""


def run_demo(
    *,
    time_budget_s: float = DEFAULT_TIME_BUDGET_S,
    cache_dir: str | Path | None = None,
    progress: ProgressOption = None,
    say: Callable[[str], None] = lambda _: None,
    tuned: Callable[[TunedConfig], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Tune the demo task, then train it with defaults and as tuned.

    Args:
        time_budget_s: Seconds of tuning.
        cache_dir: Where the crops are kept; None is the user's cache folder.
        progress: Passed on to ``tune``.
        say: Gets a line at each stage.
        tuned: Gets the tuned configuration as soon as it is known, before the trainings.
        clock: Seconds.

    Raises:
        AutotuneError: As ``demo_task`` and ``tune``.
    """
    begun = clock()
    task = demo_task(cache_dir, say=say)
    say(f"Tuning for at most {time_budget_s:.0f} s.")
    config = tune(task, time_budget_s=time_budget_s, progress=progress)
    tuned(config)
    left_s = time_budget_s + _BESIDE_TUNING_S - (clock() - begun)
    least_s, most_s = _TRAINING_LIMIT_S
    return compare(task, config, limit_s=max(least_s, min(most_s, left_s / 2)), say=say, clock=clock)
