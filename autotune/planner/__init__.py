"""What to look at next and when to stop; pure decisions over a callable that answers probes."""

from autotune.planner.found import Found
from autotune.planner.pace import CPU, GPU, Pace, race_reserve_s
from autotune.planner.plan import Plan

__all__ = ["CPU", "GPU", "Found", "Pace", "Plan", "race_reserve_s"]
