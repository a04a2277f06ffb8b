"""Is a stored config still true here? Fingerprints, one safe step, then a short interleaved race."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from autotune.config import TunedConfig
from autotune.config.shared_machine import among_others
from autotune.hardware import Hardware
from autotune.hardware.nearness import Difference, is_patch_release, speed_differences
from autotune.measurement import Outcome, Probe
from autotune.nightly.here import Here
from autotune.planner import CPU, GPU
from autotune.planner.safe_step import safe_step, unsafe_because
from autotune.race import RaceResult
from autotune.race import race as interleaved
from autotune.settings import Settings
from autotune.task.parts import PartDifference, differing_parts, in_words

__all__ = ["EXIT_CODES", "Check", "Race", "Verdict", "check"]

Verdict = Literal["valid", "drifted", "foreign", "unsafe", "undecided"]

EXIT_CODES: Mapping[Verdict, int] = {"valid": 0, "drifted": 10, "foreign": 11, "unsafe": 12, "undecided": 13}
"""What ``torch-autotune check`` ends with."""

_STEP_DEADLINE_S = 60.0


class Race(Protocol):
    """``race.race``, or a stand-in for tests."""

    def __call__(
        self,
        baseline: Settings,
        candidates: Sequence[Settings],
        *,
        run: Callable[[Probe], Outcome],
        budget_s: float,
        margin: float,
        clock: Callable[[], float],
    ) -> list[RaceResult]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found of a stored config."""

    verdict: Verdict
    reason: str
    """One sentence."""
    differences: tuple[Difference, ...] = ()
    """Of the machine it was measured on."""
    task_differences: tuple[PartDifference, ...] = ()
    """Of the task it was tuned for, where that is another."""
    stored: float | None = None
    """Speedup over the baseline as stored."""
    median: float | None = None
    """The same now."""
    low: float | None = None
    """Lower one-sided 95 % bound of it."""
    high: float | None = None
    """Upper one-sided 95 % bound of it."""
    samples_per_s: float | None = None
    """Median rate of the stored settings now."""
    others_cores: float | None = None
    """Most CPU cores' worth that others used in a lap."""
    stored_among: str | None = None
    """Who else used the machine when what is stored was measured, which is no measure of drift then; None: nobody."""
    race: RaceResult | None = None
    """The race that was run now; not in the JSON."""

    @property
    def near(self) -> bool:
        """It was measured under another patch release of torch."""
        return is_patch_release(self.differences)

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return EXIT_CODES[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "race"}
        drift = self.median / self.stored if self.median and self.stored else None
        return {
            **fields,
            "differences": [one.to_json() for one in self.differences],
            "task_differences": [one.to_json() for one in self.task_differences],
            "drift": drift,
            "exit_code": self.exit_code,
        }


def check(
    config: TunedConfig,
    here: Here,
    *,
    race: Race = interleaved,
    clock: Callable[[], float] = time.monotonic,
    budget_s: float = 20.0,
    memory_margin: float = 0.05,
) -> Check:
    """Compares a stored config with what it does here and now.

    Args:
        config: As stored.
        here: Its task on this machine.
        race: Races the stored settings against the stored baseline.
        clock: Seconds, monotonic.
        budget_s: For the race.
        memory_margin: Share of the memory that must stay free.
    """
    differences = speed_differences(_record(config), here.record)
    if config.facts.fingerprint != here.fingerprint:
        return _of_another_task(config, here, differences)
    if differences and not is_patch_release(differences):
        said = "; ".join(map(str, differences))
        return Check(verdict="foreign", reason=f"It was tuned on another machine ({said}).", differences=differences)
    outcome = safe_step(here.run, config.settings, deadline_s=_STEP_DEADLINE_S)
    unsafe = unsafe_because(outcome, here.hardware, here.limits, memory_margin)
    if unsafe is not None:
        return Check(verdict="unsafe", reason=f"It does not run here: {unsafe}.", differences=differences)
    if config.settings == config.baseline:
        reason = "The baseline is what is stored, and it runs: there is nothing to race it against."
        return Check(verdict="valid", reason=reason, differences=differences)
    margin = (GPU if here.hardware.accelerator else CPU).margin
    (result,) = race(config.baseline, [config.settings], run=here.run, budget_s=budget_s, margin=margin, clock=clock)
    return dataclasses.replace(_judged(config, result, margin), differences=differences)


def _of_another_task(config: TunedConfig, here: Here, differences: tuple[Difference, ...]) -> Check:
    parts = differing_parts(config.facts.identity.parts, here.parts)
    inside = bool(parts) and all(one.only_inside for one in parts)
    there, now = (_minor(record.get("python")) for record in (_record(config), here.record))
    python = f"; code counts as compiled, by Python {there} there and {now} here" if inside and there != now else ""
    return Check(
        verdict="foreign",
        reason=f"It was tuned for another task ({in_words(parts)}{python}).",
        differences=differences,
        task_differences=parts,
    )


def _minor(version: Any) -> str:
    return ".".join(str(version).split(".")[:2])


def _record(config: TunedConfig) -> Mapping[str, Any]:
    if isinstance(config.hardware, Hardware):
        return {"fingerprint": config.hardware.fingerprint, **config.hardware.to_json()}
    return config.hardware


def _judged(config: TunedConfig, result: RaceResult, margin: float) -> Check:
    speedup, among = config.evidence.speedup, among_others(config)
    stored = speedup.median if speedup else None
    known: dict[str, Any] = {
        "stored": stored,
        "stored_among": among,
        "others_cores": result.others_cores,
        "race": result,
    }
    if among is not None:  # of a machine under such load: no measure of this one
        speedup = None
    low, median, high = result.low, result.median, result.high
    if result.undecided is not None or low is None or median is None or high is None:
        failed = result.failed is not None and result.failed.settings == config.settings
        said = (result.undecided or "Too few rounds to decide.").rstrip(".")
        verdict: Verdict = "unsafe" if failed else "undecided"
        return Check(verdict=verdict, reason=f"{said}.", **known)
    slower = speedup is not None and high < speedup.low and median < speedup.median / (1 + margin)
    holds = low > 1.0 and (speedup is None or median >= speedup.low / (1 + margin))
    verdict = "drifted" if slower or high < 1.0 else "valid" if holds else "undecided"
    return Check(
        verdict=verdict,
        reason=_sentence(verdict, stored, low, median, high, among=among),
        median=median,
        low=low,
        high=high,
        samples_per_s=sorted(result.candidate_samples_per_s)[len(result.candidate_samples_per_s) // 2],
        **known,
    )


def _sentence(
    verdict: Verdict, stored: float | None, low: float, median: float, high: float, *, among: str | None
) -> str:
    now = f"{median:.2f}x the baseline ({low:.2f} to {high:.2f})"
    was = f"{stored:.2f}x stored" if stored is not None else "no race stored"
    was = was if among is None else f"{was} (measured while {among})"
    if verdict == "drifted":
        share = f", {1 - median / stored:.0%} less" if stored and among is None else ""
        return f"It drifted: {now} now, {was}{share}."
    if verdict == "valid":
        return f"It holds: {now} now, {was}."
    return f"Undecided: {now} now, {was}: too noisy to tell; run again when the machine is quieter."
