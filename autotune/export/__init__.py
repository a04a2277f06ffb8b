"""Tuned settings in the words of other libraries.

``export.to(tuned, "hf")`` gives arguments for that library, files where it reads files, and what it cannot express.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.export.names import DIALECTS
from autotune.export.record import Export, NotExpressed, TaskSource

if TYPE_CHECKING:
    from autotune.export.dialects import to

__all__ = ["DIALECTS", "Export", "NotExpressed", "TaskSource", "to"]


def __getattr__(name: str) -> Any:
    if name != "to":  # which loads torch
        raise AttributeError(f"module 'autotune.export' has no attribute {name!r}")
    from autotune.export.dialects import to

    return to
