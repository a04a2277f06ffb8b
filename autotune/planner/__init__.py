"""What to look at next and when to stop; pure decisions over a callable that answers probes."""

from autotune.planner.found import Found
from autotune.planner.pace import CPU, GPU, Pace
from autotune.planner.plan import Plan
from autotune.planner.reserve import affordable, race_reserve_s, rounds_wanted

__all__ = ["CPU", "GPU", "Found", "Pace", "Plan", "affordable", "race_reserve_s", "rounds_wanted"]
