"""Searches again where a stored config is missing, drifted or does not run, and rewrites it only for a proven gain."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from autotune.api import tune as tune_task
from autotune.config import Speedup, TunedConfig
from autotune.config.entries import Match, matches
from autotune.config.file import NewerConfigError
from autotune.errors import BusyError, ConfigError
from autotune.nightly.check import Check, Race, check
from autotune.nightly.here import Here, device_lock, opened, others_at_work
from autotune.planner import CPU, GPU
from autotune.profiles import Key, Profiles
from autotune.race import RaceResult
from autotune.race import race as interleaved
from autotune.settings import Settings
from autotune.task import Task

__all__ = ["LEAST_GAIN", "Outcome", "Retuned", "Rules", "Seams", "retune"]

LEAST_GAIN = 0.03
"""What the lower bound of the race against the stored settings must exceed: churn is not free for who trains."""

_BASELINE_HOLDS = timedelta(days=7)  # that nothing is faster is looked at again after this

Outcome = Literal["unchanged", "kept", "rewritten", "new", "nothing proven"]
"""unchanged: no study was run; kept: a study found nothing that beats the stored settings by enough; rewritten: it did;
new: there was no config for this machine; nothing proven: nor is there one now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How to re-tune."""

    time_budget_s: float = 300.0
    """For the study."""
    check_budget_s: float = 20.0
    """For each race outside the study: of the check, and of the old settings against the new."""
    allow_batch_change: bool = False
    """Let effective batch and learning rate change; otherwise they stay as stored."""
    storage: str | None = None
    """Optuna storage of the study; None: in memory."""
    study_name: str | None = None
    """Its name there."""
    memory_margin: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """What a re-tune does to the world; tests replace it."""

    opened: Callable[[Task], AbstractContextManager[Here]] = opened
    tune: Callable[..., TunedConfig] = tune_task
    race: Race = interleaved
    busy: Callable[[Here, Settings], str | None] = others_at_work
    lock: Callable[[Task], AbstractContextManager[None]] = device_lock
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retuned:
    """What became of one re-tune: the line of metrics."""

    task: str
    outcome: Outcome
    reason: str
    when: str
    seconds: float
    key: Key
    verdict: str | None = None
    """Of the check before; None: there was nothing to check."""
    old_samples_per_s: float | None = None
    new_samples_per_s: float | None = None
    gain: Speedup | None = None
    """Of the new settings over the stored ones, raced."""
    moved: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Settings that changed: name -> old and new value; where nothing was stored, old is the baseline."""

    @property
    def changed(self) -> bool:
        """Something was written."""
        return self.outcome in ("rewritten", "new")

    def to_json(self) -> dict[str, Any]:
        """One line's worth of JSON values."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "key"}
        return {
            **fields,
            "gain": None if self.gain is None else self.gain.to_json(),
            "moved": {name: list(pair) for name, pair in self.moved.items()},
            "fingerprint": self.key.task,
            "hardware": self.key.hardware,
        }

    def line(self) -> str:
        """The line of the change log: old -> new rate, and which settings moved."""
        rates = f"{_rate(self.old_samples_per_s)} -> {_rate(self.new_samples_per_s)} samples/s"
        gain = f" ({self.gain.median:.2f}x, at least {self.gain.low:.2f}x)" if self.gain else ""
        moved = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.moved.items()) or "no setting"
        return f"{self.when} {self.task} [{self.key.hardware[7:19]}] {self.outcome}: {rates}{gain}; moved: {moved}"


def retune(
    task: Task, store: Profiles, *, name: str, rules: Rules | None = None, seams: Seams | None = None
) -> Retuned:
    """Checks the stored config of a task on this machine, and searches again where that is called for.

    Nothing is written before everything is proven: a crash leaves the old config. What is stored for other machines is
    not touched.

    Args:
        task: What is trained.
        store: Where configs are kept.
        name: The task's, for people.
        rules: How to re-tune.
        seams: What it does to the world.

    Raises:
        BusyError: Others are at work on the device or the cores; nothing was measured or written.
        AutotuneError: As ``autotune()``, or the store cannot be used.
    """
    run = _Retune(task=task, store=store, name=name, rules=rules or Rules(), seams=seams or Seams())
    with run.seams.lock(task):
        return run.go()


@dataclass(kw_only=True)
class _Retune:
    task: Task
    store: Profiles
    name: str
    rules: Rules
    seams: Seams
    stored: TunedConfig | None = None
    """The config to start from: this machine's, a near one's, or the most similar machine's."""
    checked: Check | None = None

    def go(self) -> Retuned:
        self.began_s = self.seams.clock()
        with self.seams.opened(self.task) as here:
            self.key = Key(task=here.fingerprint, hardware=here.hardware.fingerprint)
            match = self._nearest(here)
            usable = match is not None and (match.exact or match.near)
            self._refuse_if_busy(here)
            if usable and self.stored is not None:
                self.checked = self._check(self.stored, here)
        if self.checked is not None and not self._worth_a_study(self.checked):
            return self._ended("unchanged", self.checked.reason)
        new = self._study()
        if self.stored is None or not usable:
            return self._first(new)
        return self._compare(self.stored, new)

    def _nearest(self, here: Here) -> Match | None:
        """The entry to start from; ``stored`` is its config."""
        try:
            entries = self.store.read().entries
        except NewerConfigError:
            raise
        except ConfigError:
            return None  # damaged as a whole: kept aside when the result is stored, and said then
        for match in matches((one for one in entries if not one.key.rules), here.record, task=here.fingerprint):
            try:
                self.stored = TunedConfig.from_json(match.entry.document, task=self.task)
            except ConfigError:
                continue  # its results stay behind the new one
            return match
        return None

    def _refuse_if_busy(self, here: Here) -> None:
        settings = self.stored.baseline if self.stored is not None else Settings()
        said = self.seams.busy(here, settings)
        if said is not None:
            raise BusyError(f"Not re-tuned: {said}.", "Run it when the machine is otherwise idle; nothing was changed.")

    def _check(self, stored: TunedConfig, here: Here) -> Check:
        return check(
            stored,
            here,
            race=self.seams.race,
            clock=self.seams.clock,
            budget_s=self.rules.check_budget_s,
            memory_margin=self.rules.memory_margin,
        )

    def _worth_a_study(self, checked: Check) -> bool:
        if checked.verdict in ("drifted", "unsafe"):
            return True
        evidence = self.stored.evidence if self.stored is not None else None
        return evidence is not None and evidence.kept_baseline and self._is_old(evidence.created)

    def _is_old(self, created: str) -> bool:
        try:
            return self.seams.now() - datetime.fromisoformat(created) > _BASELINE_HOLDS
        except (ValueError, TypeError):  # no date, or one without a zone
            return True

    def _study(self) -> TunedConfig:
        options: dict[str, Any] = {
            "time_budget_s": self.rules.time_budget_s,
            "memory_margin": self.rules.memory_margin,
            "storage": self.rules.storage,
            "study_name": self.rules.study_name or (self.name if self.rules.storage else None),
            "progress": False,
        }
        if self.stored is not None:
            options["earlier"] = self.stored.settings
            if not self.rules.allow_batch_change:
                options["effective_batch_size"] = self.stored.settings.effective_batch_size
        return self.seams.tune(self.task, **options)

    def _first(self, new: TunedConfig) -> Retuned:
        """Nothing was stored for this machine, so what won its race against the baseline is."""
        if new.evidence.kept_baseline:
            return self._ended("nothing proven", new.evidence.reason, new=new)
        config = new if self.stored is None else self._held(self.stored, new)
        return self._written(config, "new", "There was no config for this machine.")

    def _compare(self, stored: TunedConfig, new: TunedConfig) -> Retuned:
        if new.settings == stored.settings:
            return self._ended("kept", "The study found the stored settings again.", new=new)
        with self.seams.opened(self.task) as here:
            unsafe = self.checked is not None and self.checked.verdict == "unsafe"
            gate = None if unsafe else self._raced(stored.settings, new.settings, here, LEAST_GAIN)
            if gate is not None and not gate.wins:
                return self._ended("kept", _not_enough(gate), new=new, gain=gate)
            margin = (GPU if here.hardware.accelerator else CPU).margin
            proof = (
                self._raced(stored.baseline, new.settings, here, margin) if new.settings != stored.baseline else None
            )
        if proof is not None and not proof.wins:
            return self._ended("kept", "It was not proven against the baseline once more.", new=new, gain=gate)
        config = new if self.rules.allow_batch_change else self._held(stored, new, proof)
        reason = self.checked.reason if self.checked is not None else ""
        return self._written(config, "rewritten", reason, gain=gate)

    def _raced(self, old: Settings, new: Settings, here: Here, margin: float) -> RaceResult:
        (result,) = self.seams.race(
            old, [new], run=here.run, budget_s=self.rules.check_budget_s, margin=margin, clock=self.seams.clock
        )
        return result

    def _held(self, stored: TunedConfig, new: TunedConfig, proof: RaceResult | None = None) -> TunedConfig:
        """The new settings with the learning rate as stored, and measured against the stored baseline if raced so."""
        if self.rules.allow_batch_change or new.settings.effective_batch_size != stored.settings.effective_batch_size:
            return new
        held = dataclasses.replace(new, learning_rate=stored.learning_rate)
        if new.settings == stored.baseline:
            evidence = dataclasses.replace(new.evidence, kept_baseline=True, speedup=None)
        elif proof is not None:
            evidence = dataclasses.replace(
                new.evidence,
                kept_baseline=False,
                speedup=_speedup(proof),
                samples_per_s=statistics.median(proof.candidate_samples_per_s),
                baseline_samples_per_s=statistics.median(proof.baseline_samples_per_s),
            )
        else:
            return held
        return dataclasses.replace(held, baseline=stored.baseline, evidence=evidence, same_batch=stored.same_batch)

    def _written(self, config: TunedConfig, outcome: Outcome, reason: str, gain: RaceResult | None = None) -> Retuned:
        ended = self._ended(outcome, reason, new=config, gain=gain)
        self.store.put(self.key, config.to_json(), why=ended.line())
        return ended

    def _ended(
        self, outcome: Outcome, reason: str, *, new: TunedConfig | None = None, gain: RaceResult | None = None
    ) -> Retuned:
        stored = self.stored
        before = stored.settings if stored is not None else new.baseline if new is not None else None
        moved = before.differences(new.settings) if before is not None and new is not None else {}
        first = new.evidence.baseline_samples_per_s if new is not None else None
        old_rate = stored.evidence.samples_per_s if stored is not None else first
        new_rate = new.evidence.samples_per_s if new is not None else None
        if gain is not None and gain.rounds:
            old_rate = statistics.median(gain.baseline_samples_per_s)
            new_rate = statistics.median(gain.candidate_samples_per_s)
        return Retuned(
            task=self.name,
            outcome=outcome,
            reason=reason,
            when=self.seams.now().isoformat(timespec="seconds"),
            seconds=self.seams.clock() - self.began_s,
            key=self.key,
            verdict=None if self.checked is None else self.checked.verdict,
            old_samples_per_s=old_rate,
            new_samples_per_s=new_rate if new is not None else self._rate_now(),
            gain=_speedup(gain),
            moved=moved if outcome in ("rewritten", "new") else {},
        )

    def _rate_now(self) -> float | None:
        return None if self.checked is None else self.checked.samples_per_s


def _speedup(race: RaceResult | None) -> Speedup | None:
    if race is None or race.median is None or race.low is None or race.high is None:
        return None
    laps = tuple(zip(race.baseline_samples_per_s, race.candidate_samples_per_s, strict=True))
    return Speedup(
        median=race.median, low=race.low, high=race.high, rounds=race.rounds, laps=laps, others_cores=race.others_cores
    )


def _not_enough(gate: RaceResult) -> str:
    if gate.undecided is not None or gate.median is None or gate.low is None:
        return f"The new settings were not proven against the stored ones: {gate.undecided or 'too few rounds'}"
    return (
        f"The new settings raced at {gate.median:.2f}x the stored ones, of which only {gate.low:.2f}x is certain "
        f"(needed: above {1 + LEAST_GAIN:.2f}x)."
    )


def _rate(samples_per_s: float | None) -> str:
    return "?" if samples_per_s is None else f"{samples_per_s:,.0f}"
