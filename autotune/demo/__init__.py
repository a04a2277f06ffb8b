"""The demo: ten photos, and a small training job that asks from which of them a crop was cut.

Real pixels, constructed labels: the JPEG files are decoded and augmented as in any image training, so its speed is
real, but the question has no use beyond showing a loss that falls.
"""

from __future__ import annotations

from autotune.demo.crops import prepare_crops
from autotune.demo.task import demo_task

__all__ = ["demo_task", "prepare_crops"]
