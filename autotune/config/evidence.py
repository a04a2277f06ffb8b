"""What was measured, and how sure it is: the part of a tuned config that says why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.learning_rate import NoiseScale

__all__ = ["Evidence", "Speedup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Ratio of samples/s to the baseline's, from an interleaved race."""

    median: float
    """Median over the rounds."""
    low: float
    """One-sided 95 % lower bound."""
    high: float
    """One-sided 95 % upper bound."""
    rounds: int
    """Rounds in which both were measured."""
    laps: tuple[tuple[float, float], ...] = ()
    """Raw samples/s of each round: the baseline's, then the settings'."""
    others_cores: float | None = None
    """Most CPU cores' worth that other processes used in a lap; None where it cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """JSON scalars; a bound that is not finite becomes null."""
        return {
            "median": _finite(self.median),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "rounds": int(self.rounds),
            "laps": [[float(baseline), float(settings)] for baseline, settings in self.laps],
            "others_cores": _finite(self.others_cores),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Speedup | None:
        """The speedup ``to_json`` wrote; None for an empty mapping, or where the median is null."""
        if data.get("median") is None:
            return None
        low, high = data["low"], data["high"]
        return cls(
            median=data["median"],
            low=0.0 if low is None else low,
            high=math.inf if high is None else high,
            rounds=data["rounds"],
            laps=tuple((baseline, settings) for baseline, settings in data.get("laps", ())),
            others_cores=data.get("others_cores"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Why these settings: what was measured, what limits the speed, and where the time budget went."""

    kept_baseline: bool
    """Nothing was proven faster by the margin, so the settings are the baseline's."""
    reason: str
    """Why this answer, and what bounds the speed."""
    speedup: Speedup | None = None
    """Against the baseline; where it was kept, of the fastest other settings, which lost. None: nothing was raced."""
    speedup_same_batch: Speedup | None = None
    """Of the fastest settings with the baseline's effective batch."""
    samples_per_s: float | None = None
    """Measured rate of the settings, over whole epochs."""
    baseline_samples_per_s: float | None = None
    """The same of the baseline."""
    upper_bound_samples_per_s: float | None = None
    """The lesser of what loader and training step can each give alone: what is left to gain from overlapping them."""
    largest_batch: int | None = None
    """Largest micro-batch that ran."""
    data_wait_share: float | None = None
    """Share of the time, 0 to 1, in which the training step waited for the loader."""
    tokens_per_sample: float | None = None
    """Mean length of the part of a sample that varies most (in tokens, where it is text); None where none does."""
    padding_share: float | None = None
    """Share of padding, 0 to 1, in the baseline's batches drawn at random; None where nothing is padded."""
    samples_seen: int | None = None
    """Samples that were read for their lengths; None where all are alike."""
    noise_scale: NoiseScale | None = None
    """How large a batch still pays, at the weights as they were; None: not measured."""
    dropped_knobs: Mapping[str, str] = field(default_factory=dict)
    """Knobs that were not varied here, each with its reason."""
    warnings: tuple[str, ...] = ()
    """What casts doubt on the numbers or needs attention."""
    spent_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the time budget by what they went into."""
    trials: int = 0
    """Trials run."""
    created: str = ""
    """ISO 8601 date and time of the tuning."""

    @property
    def tokens_per_s(self) -> float | None:
        """``samples_per_s`` in tokens, padding left out; None where all samples are of one length."""
        if self.samples_per_s is None or self.tokens_per_sample is None:
            return None
        return self.samples_per_s * self.tokens_per_sample

    def to_json(self) -> dict[str, Any]:
        """JSON values; numbers that are not finite become null, a missing speedup an empty object."""
        return {
            "speedup": self.speedup.to_json() if self.speedup else {},
            "speedup_same_batch": self.speedup_same_batch.to_json() if self.speedup_same_batch else {},
            "samples_per_s": _finite(self.samples_per_s),
            "baseline_samples_per_s": _finite(self.baseline_samples_per_s),
            "upper_bound_samples_per_s": _finite(self.upper_bound_samples_per_s),
            "largest_batch": None if self.largest_batch is None else int(self.largest_batch),
            "data_wait_share": _finite(self.data_wait_share),
            "tokens_per_s": _finite(self.tokens_per_s),
            "tokens_per_sample": _finite(self.tokens_per_sample),
            "padding_share": _finite(self.padding_share),
            "samples_seen": None if self.samples_seen is None else int(self.samples_seen),
            **({} if self.noise_scale is None else {"noise_scale": self.noise_scale.to_json()}),
            "kept_baseline": bool(self.kept_baseline),
            "reason": self.reason,
            "dropped_knobs": dict(self.dropped_knobs),
            "warnings": list(self.warnings),
            "spent_s": {name: _finite(seconds) for name, seconds in self.spent_s.items()},
            "trials": int(self.trials),
            "created": self.created,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """The evidence ``to_json`` wrote."""
        noise = data.get("noise_scale")
        spent = {name: seconds for name, seconds in data["spent_s"].items() if seconds is not None}
        return cls(
            **{
                **{name: value for name, value in data.items() if name != "tokens_per_s"},
                "speedup": Speedup.from_json(data["speedup"]),
                "speedup_same_batch": Speedup.from_json(data["speedup_same_batch"]),
                "noise_scale": None if noise is None else NoiseScale.from_json(noise),
                "warnings": tuple(data["warnings"]),
                "spent_s": spent,
            }
        )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
