"""What a search leaves for the race."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.measurement import DataCosts, Measured

__all__ = ["Found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search leaves for the race."""

    baseline: Measured | None
    """None: not even the baseline could be measured in the time."""
    finalists: tuple[Measured, ...]
    """The fastest setting first, then the fastest with the baseline's batch; empty if nothing beat the baseline."""
    stopped: str
    """Why the search ended."""
    compute: Measured | None = None
    """The fastest look at the training step alone, on a batch in memory."""
    loader: Measured | None = None
    """The fastest look at the loader alone."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Knobs that were left alone for what was seen, each with its reason."""
    warnings: tuple[str, ...] = ()
    data: DataCosts | None = None
    """What the samples cost; None where all are alike, or none was read."""
