"""Where the time budget went, out of what the trials themselves report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.measurement import Measured, Outcome

__all__ = ["spending"]


def spending(outcomes: Sequence[Outcome], *, start_s: float, search_s: float, race_s: float) -> dict[str, float]:
    """Seconds by what they went into; they add up to the whole run.

    Args:
        outcomes: All outcomes of the run, race laps included.
        start_s: Until the first trial: the process, the task's way into it, its first batch.
        search_s: From there to the race.
        race_s: The race, warm-up of its settings included.

    Returns:
        ``start``; of the search: ``first batches`` (workers and objects of each trial), ``warm-up``, ``windows`` (what
        rates come from), ``numerics``, ``failed trials`` and ``between trials`` (building models, new processes, the
        study); ``race``.
    """
    trials = [one for one in outcomes if one.kind != "lap"]
    timed = [one for one in trials if isinstance(one, Measured) and one.kind != "numerics"]
    parts = {
        "first batches": math.fsum(one.start_s for one in timed),
        "warm-up": math.fsum(one.warmup_s - one.start_s for one in timed if one.warmup_s > one.start_s),
        "windows": math.fsum(chunk.seconds for one in timed for chunk in one.chunks),
        "numerics": math.fsum(one.cost_s for one in trials if one.kind == "numerics"),
        "failed trials": math.fsum(one.cost_s for one in trials if not isinstance(one, Measured)),
    }
    between_s = max(0.0, search_s - math.fsum(parts.values()))
    spent = {"start": start_s, **parts, "between trials": between_s, "race": race_s}
    return {name: seconds for name, seconds in spent.items() if seconds > 0}
