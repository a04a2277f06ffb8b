"""Readers of a tuned config and of a running search: the result as text or table, and live progress."""

from __future__ import annotations

from autotune.config.changes import changes
from autotune.config.summary import summary
from autotune.report.progress import LiveProgress, Progress
from autotune.report.render import render

__all__ = ["LiveProgress", "Progress", "changes", "render", "summary"]
