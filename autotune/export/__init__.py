"""Tuned settings in the words of other libraries.

``export.to(tuned, "hf")`` gives arguments for that library, files where it reads files, and what it cannot express.
"""

from __future__ import annotations

from autotune.export.dialects import DIALECTS, to
from autotune.export.record import Export, NotExpressed

__all__ = ["DIALECTS", "Export", "NotExpressed", "to"]
