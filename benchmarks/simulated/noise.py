"""How far measured rates lie from the truth: run to run, step to step, slow outliers, and a machine that wanders."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

__all__ = ["CPU_NOISE", "GPU_NOISE", "Noise", "NoiseLevel"]

_HORIZON_S = 700
_MEMORY_S = 60.0  # how long the wandering remembers


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLevel:
    """Standard deviations of the logarithm of a rate."""

    of_run: float
    """Of a whole window: another start gives another rate."""
    of_second: float
    of_step: float
    outlier_share: float
    """Of windows that something else slows down."""
    outlier: tuple[float, float]
    """By so much, evenly drawn."""
    wandering: float
    warming: float
    """What a device loses as it gets warm, over some 40 s."""


GPU_NOISE = NoiseLevel(
    of_run=0.012,
    of_second=0.022,
    of_step=0.06,
    outlier_share=0.05,
    outlier=(0.2, 0.2),
    wandering=0.004,
    warming=0.02,
)
CPU_NOISE = NoiseLevel(
    of_run=0.05,
    of_second=0.08,
    of_step=0.15,
    outlier_share=0.07,
    outlier=(0.2, 0.6),
    wandering=0.07,
    warming=0.0,
)


class Noise:
    """Factors on true rates.

    Args:
        level: How much.
        random: Where it comes from.
    """

    def __init__(self, level: NoiseLevel, random: np.random.Generator) -> None:
        self._level, self._random = level, random
        seconds = np.arange(_HORIZON_S)
        keeps = math.exp(-1 / _MEMORY_S)
        steps = random.standard_normal(_HORIZON_S) * math.sqrt(1 - keeps**2)
        walk = [0.0]
        for step in steps[1:]:
            walk.append(keeps * walk[-1] + step)
        self._drift = level.wandering * np.array(walk) - level.warming * (1 - np.exp(-seconds / 40.0))

    def of_window(self, now_s: float) -> float:
        """The factor that a whole window shares."""
        level, random = self._level, self._random
        log = random.standard_normal() * level.of_run + self._drift[min(int(now_s), _HORIZON_S - 1)]
        if random.random() < level.outlier_share:
            log -= random.uniform(*level.outlier)
        return math.exp(log)

    def of_chunk(self, seconds: float, steps: float) -> float:
        """The factor of a part of a window."""
        level = self._level
        spread = math.hypot(level.of_second / math.sqrt(max(seconds, 1e-3)), level.of_step / math.sqrt(max(steps, 1)))
        return math.exp(self._random.standard_normal() * spread)

    def about(self, spread: float) -> float:
        """A factor around 1."""
        return math.exp(self._random.standard_normal() * spread)
