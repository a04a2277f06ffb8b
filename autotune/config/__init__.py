"""The result of tuning: settings, evidence, builders for what trains with them, and their JSON form."""

from __future__ import annotations

from autotune.config.evidence import Evidence, Speedup
from autotune.config.tuned_config import TunedConfig

__all__ = ["Evidence", "Speedup", "TunedConfig"]
