"""Student's t: bounds and intervals of means of few values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Interval", "mean_interval", "student_t_95"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided 95 % interval."""

    low: float
    high: float


# 95th percentile of Student's t for 1..30 degrees of freedom; beyond, the normal quantile with its first correction.
# Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, column 0.95.
_T_95 = (
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753,
    1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697,
)  # fmt: skip
# The same for 0.975.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def student_t_95(degrees_of_freedom: int) -> float:
    """One-sided 95 % quantile of Student's t.

    Args:
        degrees_of_freedom: At least 1.

    Source: NIST/SEMATECH e-Handbook 1.3.6.7.2; beyond 30 the first Cornish-Fisher term, error below 0.001.
    """
    return _quantile(degrees_of_freedom, _T_95, 0.95)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Two-sided 95 % t-interval of the mean; None for fewer than two values.

    Source: NIST/SEMATECH e-Handbook 1.3.5.2.
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = _quantile(len(values) - 1, _T_975, 0.975) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean - half, mean + half)


def _quantile(degrees_of_freedom: int, table: tuple[float, ...], level: float) -> float:
    if degrees_of_freedom <= len(table):
        return table[degrees_of_freedom - 1]
    z = statistics.NormalDist().inv_cdf(level)
    return z + (z**3 + z) / (4 * degrees_of_freedom)
