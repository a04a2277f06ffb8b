"""The figures of a race as evidence: of new settings, and of stored ones that are measured again."""

from __future__ import annotations

import dataclasses
import statistics
from datetime import datetime

from autotune.config import Speedup, TunedConfig
from autotune.config.shared_machine import without_doubts
from autotune.hardware import Hardware
from autotune.race import RaceResult

__all__ = ["remeasured", "speedup_of"]


def speedup_of(race: RaceResult | None) -> Speedup | None:
    """What a race showed; None where it was not run, or has too few rounds.

    Args:
        race: Of one candidate.
    """
    if race is None or race.median is None or race.low is None or race.high is None:
        return None
    laps = tuple(zip(race.baseline_samples_per_s, race.candidate_samples_per_s, strict=True))
    return Speedup(
        median=race.median, low=race.low, high=race.high, rounds=race.rounds, laps=laps, others_cores=race.others_cores
    )


def remeasured(stored: TunedConfig, race: RaceResult, *, hardware: Hardware, now: datetime) -> TunedConfig:
    """The stored settings with the figures of a race that they won now, with the machine to themselves.

    Args:
        stored: Whose figures were measured while others used the machine.
        race: Of its settings against its baseline.
        hardware: This machine.
        now: The time.
    """
    before, speedup = stored.evidence, speedup_of(race)
    same = stored.settings.effective_batch_size == stored.baseline.effective_batch_size
    when = now.isoformat(timespec="seconds")
    evidence = dataclasses.replace(
        before,
        reason=f"{before.reason}; measured again on {when[:10]}, over {race.rounds} rounds with the machine to itself",
        speedup=speedup,
        speedup_same_batch=speedup if same else before.speedup_same_batch,
        samples_per_s=statistics.median(race.candidate_samples_per_s),
        baseline_samples_per_s=statistics.median(race.baseline_samples_per_s),
        warnings=without_doubts(before.warnings) if same else before.warnings,
        created=when,
    )
    return dataclasses.replace(stored, hardware=hardware, evidence=evidence)
