"""What a race showed: raw laps, ratio, bound, and whether it was won."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from autotune.measurement import Outcome, student_t_95
from autotune.settings import Settings

__all__ = ["RaceResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceResult:
    """What one candidate's race against the baseline showed."""

    baseline: Settings
    candidate: Settings
    margin: float
    """The gain below which a difference does not count, such as 0.02."""
    baseline_samples_per_s: tuple[float, ...] = ()
    """Raw rates of the baseline's timed laps, one per round."""
    candidate_samples_per_s: tuple[float, ...] = ()
    """Raw rates of the candidate's laps, of the same rounds."""
    lap_s: float | None = None
    """Length each timed lap aimed at; None: no timed lap was run."""
    failed: Outcome | None = None
    """The candidate's or the baseline's outcome that ended this race."""
    undecided: str | None = None
    """Why there is no decision, in one sentence; None: the race was run to its end."""
    others_cores: float | None = None
    """Most CPU cores' worth that other processes used in a lap; None where it cannot be read."""
    seconds: float = 0.0
    """Wall time of the whole race, all candidates and untimed laps included."""

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return len(self.candidate_samples_per_s)

    @property
    def log_ratios(self) -> tuple[float, ...]:
        """log(candidate's rate / baseline's rate), one per round."""
        pairs = zip(self.candidate_samples_per_s, self.baseline_samples_per_s, strict=True)
        return tuple(math.log(candidate / baseline) for candidate, baseline in pairs)

    @property
    def median(self) -> float | None:
        """Median ratio over the rounds; None without a round."""
        return math.exp(statistics.median(self.log_ratios)) if self.rounds else None

    @property
    def low(self) -> float | None:
        """Lower one-sided 95 % bound of the ratio; None with fewer than two rounds.

        Source: paired t on the mean log ratio, NIST/SEMATECH e-Handbook 7.3.1.1, with one side only.
        """
        return self._bound(-1.0)

    @property
    def high(self) -> float | None:
        """Upper one-sided 95 % bound of the ratio; None with fewer than two rounds."""
        return self._bound(1.0)

    @property
    def wins(self) -> bool:
        """Whether the candidate is proven to be faster by more than the margin."""
        return self.undecided is None and self.low is not None and self.low > 1.0 + self.margin

    @property
    def noisy(self) -> bool:
        """Whether the rounds scattered too much to tell a win from no win."""
        low, high, line = self.low, self.high, 1.0 + self.margin
        return low is not None and high is not None and low <= line < high and high / low > line**2

    def _bound(self, sign: float) -> float | None:
        if self.rounds < 2:
            return None
        error = statistics.stdev(self.log_ratios) / math.sqrt(self.rounds)
        return math.exp(statistics.fmean(self.log_ratios) + sign * student_t_95(self.rounds - 1) * error)
