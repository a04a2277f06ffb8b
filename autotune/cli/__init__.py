"""The command ``torch-autotune``: arguments in, text, JSON and exit codes out."""

from __future__ import annotations

from autotune.cli.command import main
from autotune.cli.task_file import load_task

__all__ = ["load_task", "main"]
