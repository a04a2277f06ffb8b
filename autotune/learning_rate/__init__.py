"""Learning rate and batch size: scaling rules, the range test, schedules, and how large a batch still pays. Pure."""

from __future__ import annotations

from autotune.learning_rate.noise_scale import NoiseScale, SquareNorms, noise_scale
from autotune.learning_rate.optimizers import optimizer_advice
from autotune.learning_rate.range_test import LrCurve, LrSuggestion, suggest
from autotune.learning_rate.rules import (
    LearningRatePlan,
    LrRule,
    LrScaling,
    WeightDecayScaling,
    is_adaptive,
    scale,
)
from autotune.learning_rate.schedules import Schedule, ScheduleKind, make_schedule

__all__ = [
    "LearningRatePlan",
    "LrCurve",
    "LrRule",
    "LrScaling",
    "LrSuggestion",
    "NoiseScale",
    "Schedule",
    "ScheduleKind",
    "SquareNorms",
    "WeightDecayScaling",
    "is_adaptive",
    "make_schedule",
    "noise_scale",
    "optimizer_advice",
    "scale",
    "suggest",
]
