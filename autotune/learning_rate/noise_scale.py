"""How large a batch still pays: the simple gradient noise scale, from gradients at two batch sizes. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import SettingsError

__all__ = ["NoiseScale", "SquareNorms", "noise_scale"]

_RESAMPLES = 1000
_FEWEST_REPEATS = 3


@dataclass(frozen=True, slots=True)
class SquareNorms:
    """Squared norms of the gradients of one repeat, the loss being the mean over a batch."""

    small: float
    """Mean over the small batches that the large one is made of."""
    large: float
    """Of the mean gradient over all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """The simple noise scale: far below this batch, twice the samples per step halve the steps; at it, a training
    takes about twice the fewest steps and twice the fewest samples that would do; far above it, nothing is saved.

    Source: McCandlish et al. 2018, section 2.3, equation 2.11, with the simple noise scale for the critical batch.
    """

    b_simple: float | None
    """Samples; None where the mean gradient drowns in noise: then larger than what was measured can tell."""
    low: float | None
    """95 % interval over the repeats; None: not bounded."""
    high: float | None
    small_batch: int
    """Samples of the small batches."""
    large_batch: int
    """Samples of the large ones."""
    repeats: int
    samples: int
    """Samples whose gradients were taken."""
    square_gradient: float
    """Unbiased estimate of |G|^2, the true gradient's squared norm."""
    trace: float
    """Unbiased estimate of tr(S), the variance of a single sample's gradient, summed over the parameters."""
    note: str = ""
    """What to keep in mind."""

    def to_json(self) -> dict[str, Any]:
        """JSON scalars."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NoiseScale:
        """What ``to_json`` wrote."""
        return cls(**data)

    def useful_batch(self, base_batch_size: int) -> int | None:
        """The largest batch that still pays: the noise scale, but never below ``base_batch_size``; None: unknown."""
        return None if self.b_simple is None else max(base_batch_size, round(self.b_simple))

    def __str__(self) -> str:
        if self.b_simple is None:
            return f"noise scale: above {self.large_batch:,} samples. {self.note}".strip()
        interval = f"{_shown(self.low)} to {_shown(self.high)}"
        return (
            f"noise scale: {self.b_simple:,.0f} samples (95 % interval {interval}; {self.samples:,} samples in batches "
            f"of {self.small_batch:,} and {self.large_batch:,}). {self.note}"
        ).strip()


def noise_scale(repeats: Sequence[SquareNorms], *, small_batch: int, large_batch: int, note: str = "") -> NoiseScale:
    """The noise scale of measured gradients.

    |G|^2 = (B l - b s) / (B - b) and tr(S) = (s - l) / (1/b - 1/B), with s and l the squared norms at the batch sizes b
    and B, are each unbiased; each is averaged over the repeats before the ratio is taken, since a ratio of noisy
    numbers is biased. The interval is the percentile bootstrap over the repeats.

    Args:
        repeats: Squared norms, one pair for each repeat.
        small_batch: Samples of a small batch, b.
        large_batch: Samples of a large batch, B.
        note: Carried along.

    Raises:
        SettingsError: Fewer than three repeats, or batches that do not differ.

    Source: McCandlish et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv:1812.06162), section 2.2,
    equation 2.9, and appendix A.1, equation A.2; they average over the steps of a training, we at fixed weights.
    Bootstrap: Efron 1979, "Bootstrap Methods: Another Look at the Jackknife".
    """
    if len(repeats) < _FEWEST_REPEATS or not 0 < small_batch < large_batch:
        raise SettingsError(
            f"{len(repeats)} repeats at batches of {small_batch} and {large_batch} give no noise scale.",
            f"It takes {_FEWEST_REPEATS} repeats or more, at two batch sizes.",
        )
    pairs = [_estimates(one, small_batch, large_batch) for one in repeats]
    square = statistics.fmean(pair[0] for pair in pairs)
    trace = statistics.fmean(pair[1] for pair in pairs)
    low, high = _interval(pairs)
    return NoiseScale(
        b_simple=_ratio(square, trace),
        low=low,
        high=high,
        small_batch=small_batch,
        large_batch=large_batch,
        repeats=len(repeats),
        samples=len(repeats) * large_batch,
        square_gradient=square,
        trace=trace,
        note=note,
    )


def _estimates(one: SquareNorms, small_batch: int, large_batch: int) -> tuple[float, float]:
    square = (large_batch * one.large - small_batch * one.small) / (large_batch - small_batch)
    trace = (one.small - one.large) / (1 / small_batch - 1 / large_batch)
    return square, trace


def _ratio(square: float, trace: float) -> float | None:
    """None where no finite number of samples would do: the estimate of |G|^2 is not above 0."""
    return max(0.0, trace) / square if square > 0 and math.isfinite(trace / square) else None


def _interval(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    draw = random.Random(0)  # the same numbers give the same interval
    found = []
    for _ in range(_RESAMPLES):
        chosen = draw.choices(pairs, k=len(pairs))
        ratio = _ratio(math.fsum(one[0] for one in chosen), math.fsum(one[1] for one in chosen))
        found.append(math.inf if ratio is None else ratio)
    found.sort()
    low, high = found[round(0.025 * _RESAMPLES)], found[round(0.975 * _RESAMPLES) - 1]
    return (low if math.isfinite(low) else None), (high if math.isfinite(high) else None)


def _shown(bound: float | None) -> str:
    return "unbounded" if bound is None else f"{bound:,.0f}"
