"""Searches again where a stored config is missing, drifted or does not run, and rewrites it only for a proven gain."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from autotune.api import tune as tune_task
from autotune.api.request import request_of
from autotune.config import TunedConfig
from autotune.config.entries import Entry, Match, matches
from autotune.config.file import NewerConfigError
from autotune.config.shared_machine import OTHERS_CORES, among_others
from autotune.errors import BusyError, ConfigError
from autotune.nightly.check import Check, Race, check
from autotune.nightly.here import Here, device_lock, opened, others_at_work
from autotune.nightly.remeasure import remeasured, speedup_of
from autotune.nightly.retuned import Outcome, Retuned
from autotune.planner import CPU, GPU
from autotune.profiles import Key, Profiles
from autotune.race import RaceResult
from autotune.race import race as interleaved
from autotune.settings import Settings
from autotune.task import Task
from autotune.task.parts import PartDifference, in_words

__all__ = ["LEAST_GAIN", "Rules", "Seams", "retune"]

LEAST_GAIN = 0.03
"""What the lower bound of the race against the stored settings must exceed: churn is not free for who trains."""

_BASELINE_HOLDS = timedelta(days=7)  # that nothing is faster is looked at again after this
_ASKED = ("request", "time_budget_s")  # of an entry: what its search was asked


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
    unlike: tuple[PartDifference, ...] = ()
    """Where nothing is stored for this task: in what the one of its name that is stored differs."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What is written beside a result: the request it answers, for calls that ask the same."""

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
            return self._remeasured(self.checked, match, here) or self._ended("unchanged", self.checked.reason)
        new = self._study(here)
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
        self.unlike = self._differences(entries, here)
        return None

    def _differences(self, entries: Sequence[Entry], here: Here) -> tuple[PartDifference, ...]:
        named = (one for one in entries if one.name == self.task.name and one.key.task != here.fingerprint)
        return min(filter(None, (one.unlike(here.parts) for one in named)), key=len, default=())

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
        if checked.stored_among is not None and checked.verdict == "valid":
            return checked.race is None or not checked.race.wins  # without the others, it is not proven any more
        if checked.stored_among is not None and checked.verdict == "undecided":
            return checked.race is not None and checked.race.undecided is None
        evidence = self.stored.evidence if self.stored is not None else None
        return evidence is not None and evidence.kept_baseline and self._is_old(evidence.created)

    def _is_old(self, created: str) -> bool:
        try:
            return self.seams.now() - datetime.fromisoformat(created) > _BASELINE_HOLDS
        except (ValueError, TypeError):  # no date, or one without a zone
            return True

    def _remeasured(self, checked: Check, match: Match | None, here: Here) -> Retuned | None:
        """What others' use of the machine had put in doubt, written with the figures of now; None: nothing to write."""
        race, stored = checked.race, self.stored
        if checked.stored_among is None or stored is None or match is None or race is None or not race.wins:
            return None
        if race.others_cores is not None and race.others_cores > OTHERS_CORES:
            return None  # no better than before
        self.asked = {name: match.entry.results[0][name] for name in _ASKED if name in match.entry.results[0]}
        config = remeasured(stored, race, hardware=here.hardware, now=self.seams.now())
        return self._written(config, "remeasured", checked.reason)

    def _study(self, here: Here) -> TunedConfig:
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
        new = self.seams.tune(self.task, **options)
        request = request_of(self.task, new.facts, here.hardware, here.limits, options)
        self.asked = {"request": request, "time_budget_s": float(self.rules.time_budget_s)}
        return new

    def _first(self, new: TunedConfig) -> Retuned:
        """Nothing was stored for this machine, so what won its race against the baseline is."""
        other = f" What is stored is of another task ({in_words(self.unlike)})." if self.unlike else ""
        if new.evidence.kept_baseline:
            return self._ended("nothing proven", f"{new.evidence.reason}{other and '.'}{other}", new=new)
        config = new if self.stored is None else self._held(self.stored, new)
        return self._written(config, "new", f"There was no config for this machine.{other}")

    def _compare(self, stored: TunedConfig, new: TunedConfig) -> Retuned:
        if new.settings == stored.settings:
            return self._found_again(stored, new)
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

    def _found_again(self, stored: TunedConfig, new: TunedConfig) -> Retuned:
        """Written where the stored figures were in doubt for others' use of the machine, and these are not."""
        doubted = self.checked is not None and self.checked.stored_among is not None
        proven = not new.evidence.kept_baseline and among_others(new) is None and new.baseline == stored.baseline
        if doubted and proven:
            reason = "The study found the stored settings again, with the machine to itself."
            return self._written(self._held(stored, new), "remeasured", reason)
        return self._ended("kept", "The study found the stored settings again.", new=new)

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
                speedup=speedup_of(proof),
                samples_per_s=statistics.median(proof.candidate_samples_per_s),
                baseline_samples_per_s=statistics.median(proof.baseline_samples_per_s),
            )
        else:
            return held
        return dataclasses.replace(held, baseline=stored.baseline, evidence=evidence, same_batch=stored.same_batch)

    def _written(self, config: TunedConfig, outcome: Outcome, reason: str, gain: RaceResult | None = None) -> Retuned:
        ended = self._ended(outcome, reason, new=config, gain=gain)
        self.store.put(self.key, config.to_json(), why=ended.line(), **self.asked)
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
            gain=speedup_of(gain),
            moved=moved if outcome in ("rewritten", "new") else {},
            task_differences=self.unlike,
        )

    def _rate_now(self) -> float | None:
        return None if self.checked is None else self.checked.samples_per_s


def _not_enough(gate: RaceResult) -> str:
    if gate.undecided is not None or gate.median is None or gate.low is None:
        return f"The new settings were not proven against the stored ones: {gate.undecided or 'too few rounds'}"
    return (
        f"The new settings raced at {gate.median:.2f}x the stored ones, of which only {gate.low:.2f}x is certain "
        f"(needed: above {1 + LEAST_GAIN:.2f}x)."
    )
