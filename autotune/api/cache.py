"""The answer of an earlier call: looked up, run once more, handed back; and what is kept of a new one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from autotune.api.environment import MODE_VARIABLE, Mode
from autotune.api.options import Options
from autotune.config import Evidence, TunedConfig
from autotune.config.assemble import assemble
from autotune.config.verdict import Verdict
from autotune.errors import AutotuneError, ConfigError
from autotune.hardware import Hardware
from autotune.measurement import Outcome, Probe
from autotune.planner import Found
from autotune.planner.safe_step import safe_step, unsafe_because
from autotune.profiles import Key, Profiles, user_folder
from autotune.race import RaceResult
from autotune.space import Candidates
from autotune.task import Task

__all__ = ["BASELINE_HOLDS", "Cache", "is_settled"]

BASELINE_HOLDS = timedelta(days=7)
"""That nothing was faster is looked at again after this: the machine was perhaps busy, the next release knows more."""

_STEP_DEADLINE_S = 30.0
_ENOUGH_TRIED = 5  # other settings, none of which was faster: a search that ran


@dataclass(kw_only=True)
class Cache:
    """The user's own store, seen from one call.

    Attributes:
        call: How to tune.
        task: What is trained.
        candidates: What may be tried, and the baseline.
        hardware: Where.
        mode: What the environment asks for.
        store: Where answers are kept; None: nowhere.
        now: The time.
    """

    call: Options
    task: Task
    candidates: Candidates
    hardware: Hardware
    mode: Mode = "tune"
    store: Profiles | None = None
    now: Callable[[], datetime] = field(default=lambda: datetime.now(timezone.utc))
    notes: list[str] = field(default_factory=list)
    """Why a stored answer was not used, and what went wrong with the store."""

    @classmethod
    def of(cls, call: Options, task: Task, candidates: Candidates, hardware: Hardware, mode: Mode) -> Cache:
        """With the user's folder, where the call and the environment allow it."""
        folder = user_folder() if call.cache or mode == "cached" else None
        store = None if folder is None else Profiles(folder)
        return cls(call=call, task=task, candidates=candidates, hardware=hardware, mode=mode, store=store)

    def answer(self, run: Callable[[Probe], Outcome]) -> TunedConfig | None:
        """What is returned without tuning; None: tune.

        Args:
            run: Answers probes.
        """
        if self.mode == "off":
            return self._baseline(f"not tuned: {MODE_VARIABLE}=off in the environment, and nothing was measured")
        # A call with a storage continues a study; the stored answer would end it.
        looks = self.mode == "cached" or (self.mode == "tune" and self.call.storage is None)
        found = self._stored(run) if looks else None
        if found is None and self.mode == "cached":
            why = "; ".join(self.notes) or "no answer is stored for this task, machine and rules"
            said = f"not tuned: {MODE_VARIABLE}=cached in the environment, and {why}"
            return self._baseline(said, f"This is the baseline, {said}.")
        return found

    def keep(self, tuned: TunedConfig, *, settled: bool) -> TunedConfig:
        """Stores an answer, where it is one; the same config, with a warning where that failed.

        Args:
            tuned: Of this call.
            settled: It was proven, or what beats it was looked for in earnest.
        """
        if self.store is None or not settled:
            return self._with_notes(tuned)
        try:
            self.store.put(self.key, tuned.to_json(), why="autotune()", time_budget_s=float(self.call.time_budget_s))
        except (ConfigError, OSError) as error:
            cause = error.cause if isinstance(error, AutotuneError) else str(error)
            self.notes.append(f"The answer was not stored for the next start: {cause}")
        return self._with_notes(tuned)

    @property
    def key(self) -> Key:
        """Everything that changes the answer."""
        return Key(
            task=self.candidates.facts.fingerprint, hardware=self.hardware.fingerprint, rules=_digest(self._rules())
        )

    def _rules(self) -> dict[str, Any]:
        call, candidates = self.call, self.candidates
        scaling = ("lr_scaling", "weight_decay_scaling")
        names = ("effective_batch_size", "max_batch_size", "max_effective_batch_size", *scaling, "isolate")
        return {
            "baseline": candidates.baseline.to_json(),
            "base_batch_size": candidates.base_batch_size,
            **{name: getattr(call, name) for name in names},
            "memory_margin": float(call.memory_margin),
            "space": repr(candidates.space),
            "max_grad_norm": self.task.max_grad_norm,
            "deterministic": candidates.facts.deterministic,
        }

    def _stored(self, run: Callable[[Probe], Outcome]) -> TunedConfig | None:
        if self.store is None:
            self.notes.append("there is no store")
            return None
        try:
            entry = self.store.entry(self.key)
            if entry is None:
                return None
            stored = TunedConfig.from_json(entry.document)
        except ConfigError as error:
            self.notes.append(f"The stored answer cannot be read: {error.cause}")
            return None
        refusal = self._refusal(stored, entry.results[0]) or self._unsafe(stored, run)
        if refusal is not None:
            self.notes.append(f"The stored answer of {entry.saved[:10]} was not used: {refusal}.")
            return None
        return self._renewed(stored, entry.saved)

    def _refusal(self, stored: TunedConfig, result: Mapping[str, Any]) -> str | None:
        """Why a stored answer is none any more, as far as that shows without running it."""
        budget_s = result.get("time_budget_s")
        if self.mode != "cached":
            if not isinstance(budget_s, (int, float)) or budget_s < self.call.time_budget_s:
                return "it was found with a smaller time budget"
            if stored.evidence.kept_baseline and self._age(str(result.get("saved"))) > BASELINE_HOLDS:
                return f"that nothing is faster is looked at again after {BASELINE_HOLDS.days} days"
        return self.candidates.refusal(stored.settings)

    def _unsafe(self, stored: TunedConfig, run: Callable[[Probe], Outcome]) -> str | None:
        outcome = safe_step(run, stored.settings, deadline_s=_STEP_DEADLINE_S, seed=self.call.seed)
        return unsafe_because(outcome, self.hardware, self.candidates.limits, self.call.memory_margin)

    def _age(self, saved: str) -> timedelta:
        try:
            return abs(self.now() - datetime.fromisoformat(saved))
        except (ValueError, TypeError):
            return timedelta.max

    def _renewed(self, stored: TunedConfig, saved: str) -> TunedConfig:
        """The stored settings and evidence around the task, learning rate and machine of today."""
        same = stored.keep_batch()
        fits = self.candidates.refusal(same.settings) is None
        said = f"; stored on {saved[:10]}, and run for one step before it was returned"
        verdict = Verdict(
            settings=stored.settings,
            evidence=dataclasses.replace(stored.evidence, reason=stored.evidence.reason + said),
            same_batch_settings=same.settings if fits else self.candidates.baseline,
            same_batch_evidence=same.evidence if fits else stored.evidence,
        )
        return self._assembled(verdict)

    def _baseline(self, reason: str, *said: str) -> TunedConfig:
        evidence = Evidence(
            kept_baseline=True,
            reason=reason,
            dropped_knobs=self.candidates.dropped,
            warnings=said,
            created=self.now().isoformat(timespec="seconds"),
        )
        baseline = self.candidates.baseline
        verdict = Verdict(
            settings=baseline, evidence=evidence, same_batch_settings=baseline, same_batch_evidence=evidence
        )
        for warning in said:
            warnings.warn(warning, UserWarning, stacklevel=5)
        return self._assembled(verdict)

    def _assembled(self, verdict: Verdict) -> TunedConfig:
        return assemble(
            verdict, self.candidates, task=self.task, hardware=self.hardware, lr_scaling=self.call.lr_scaling
        )

    def _with_notes(self, tuned: TunedConfig) -> TunedConfig:
        said = [note for note in self.notes if note != "there is no store"]
        if not said:
            return tuned
        evidence = dataclasses.replace(tuned.evidence, warnings=(*tuned.evidence.warnings, *said))
        return dataclasses.replace(tuned, evidence=evidence)


def is_settled(tuned: TunedConfig, found: Found, races: Sequence[RaceResult], *, tried: int, interrupted: bool) -> bool:
    """Whether an answer may be given to the next call as well.

    A win is proven. A kept baseline is an answer only where every race was decided and not drowned in noise, or where
    a search that really tried others found none faster; not where time was too short, or the machine too busy.

    Args:
        tuned: The answer.
        found: What the search left.
        races: How the finalists raced.
        tried: Other settings that were measured.
        interrupted: Ctrl-C ended the run.
    """
    if interrupted or found.baseline is None:
        return False
    if not tuned.evidence.kept_baseline:
        return True
    if races:
        return all(race.undecided is None and race.low is not None and not race.noisy for race in races)
    return not found.finalists and tried >= _ENOUGH_TRIED


def _digest(rules: Mapping[str, Any]) -> str:
    text = json.dumps(rules, sort_keys=True, separators=(",", ":"), default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
