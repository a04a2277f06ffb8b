"""What is worth trying here: allowed values, knobs that cannot matter (each with its reason), the baseline."""

from __future__ import annotations

from autotune.space.batch_rules import BatchRules, largest_divisor
from autotune.space.candidates import Candidates
from autotune.space.earlier import allowed_part
from autotune.space.space import Space

__all__ = ["BatchRules", "Candidates", "Space", "allowed_part", "largest_divisor"]
