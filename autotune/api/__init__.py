"""The story of one call: what is trained and where, measured in a sandbox, searched, raced, handed back."""

from __future__ import annotations

from autotune.api.call import autotune
from autotune.api.largest import largest_batch
from autotune.api.options import Options
from autotune.api.story import tune

__all__ = ["Options", "autotune", "largest_batch", "tune"]
