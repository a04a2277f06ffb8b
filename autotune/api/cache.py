"""The answer of an earlier call: looked up, run once more, handed back; and what is kept of a new one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from autotune.api.earlier import Answer, answers, start_from, unstable_parts
from autotune.api.environment import MODE_VARIABLE, Mode
from autotune.api.options import Options
from autotune.api.request import request_digest
from autotune.config import Evidence, TunedConfig
from autotune.config.assemble import assemble
from autotune.config.entries import Entry
from autotune.config.verdict import Verdict
from autotune.errors import AutotuneError, ConfigError
from autotune.hardware import Hardware
from autotune.measurement import Outcome, Probe
from autotune.planner import Found
from autotune.planner.safe_step import safe_step, unsafe_because
from autotune.profiles import Key, Profiles, user_folder
from autotune.race import RaceResult
from autotune.settings import Settings
from autotune.space import Candidates
from autotune.task import Task

__all__ = ["BASELINE_HOLDS", "Cache", "unsettled_because"]

BASELINE_HOLDS = timedelta(days=7)
"""That nothing was faster is looked at again after this: the machine was perhaps busy, the next release knows more."""

_STEP_DEADLINE_S, _LEAST_STEP_S = 30.0, 1.0
_ENOUGH_TRIED = 5  # other settings, none of which was faster: a search that ran
_AGAIN = f"`torch-autotune retune` measures again, and so does a call with {MODE_VARIABLE}=force in the environment"


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
    """Why a stored answer was not used, where the search started instead, and what went wrong with the store."""
    unsafe: list[Key] = field(default_factory=list)
    """Stored answers that do not run here any more."""
    step_left_s: float = _STEP_DEADLINE_S
    """For the safe steps of all answers that are tried."""

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

    def start(self) -> Settings | None:
        """What a search begins with, of what is stored for this task; None: nothing is, or the store is not to be used.

        Also notes a task whose fingerprint seems to change from start to start.
        """
        if self.store is None or self.mode != "tune":
            return None
        try:
            entries = self.store.read().entries
        except ConfigError as error:
            said = f"The stored answer cannot be read: {error.cause}"
            self.notes += [] if said in self.notes else [said]  # it was perhaps when the answer was looked up
            return None
        record = {"fingerprint": self.hardware.fingerprint, **self.hardware.to_json()}
        found = start_from(entries, self.key, record, without=self.unsafe)
        doubt = found.said if found is not None else self._unstable(entries)
        self.notes += [] if doubt is None else [doubt]
        return None if found is None else found.settings

    def _unstable(self, entries: Sequence[Entry]) -> str | None:
        return unstable_parts(entries, self.key, self.task.name, self.candidates.facts.identity.parts)

    def keep(self, tuned: TunedConfig, *, unsettled: str | None) -> TunedConfig:
        """Stores an answer, where it is one; the same config, with a warning where it was not stored.

        Args:
            tuned: Of this call.
            unsettled: Why it is none for the next call; None: it is, being proven or searched for in earnest.
        """
        if self.store is None:
            return self._with_notes(tuned)
        if unsettled is not None:
            tunes = self.mode == "tune" and self.call.storage is None
            then = "the next start tunes again" if tunes else "the store is as it was"
            self.notes.append(f"The answer was not stored, and {then}: {unsettled}.")
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
            task=self.candidates.facts.fingerprint,
            hardware=self.hardware.fingerprint,
            rules=request_digest(self.call, self.candidates, self.task),
        )

    def _stored(self, run: Callable[[Probe], Outcome]) -> TunedConfig | None:
        if self.store is None:
            self.notes.append("there is no store")
            return None
        faults: list[str] = []
        found = answers(self.store, self.key, faults)
        self.notes += [f"The stored answer cannot be read: {fault}" for fault in dict.fromkeys(faults)]
        for answer in found:
            refusal = self._refusal(answer.config, answer.result) or self._unsafe(answer, run)
            if refusal is None:
                return self._renewed(answer)
            self.notes.append(f"The stored answer of {answer.saved[:10]} was not used: {refusal}.")
        return None

    def _refusal(self, stored: TunedConfig, result: Mapping[str, Any]) -> str | None:
        """Why a stored answer is none any more, as far as that shows without running it."""
        budget_s = result.get("time_budget_s")
        if self.mode != "cached":
            if not isinstance(budget_s, (int, float)) or budget_s < self.call.time_budget_s:
                return "it was found with a smaller time budget"
            if stored.evidence.kept_baseline and self._age(str(result.get("saved"))) > BASELINE_HOLDS:
                return f"that nothing is faster is looked at again after {BASELINE_HOLDS.days} days"
        return self.candidates.refusal(stored.settings)

    def _unsafe(self, answer: Answer, run: Callable[[Probe], Outcome]) -> str | None:
        if self.step_left_s < _LEAST_STEP_S:
            return "another stored answer had used up the time for a safe step"
        outcome = safe_step(run, answer.config.settings, deadline_s=self.step_left_s, seed=self.call.seed)
        self.step_left_s -= outcome.cost_s
        why = unsafe_because(outcome, self.hardware, self.candidates.limits, self.call.memory_margin)
        if why is not None:
            self.unsafe.append(answer.key)
        return why

    def _age(self, saved: str) -> timedelta:
        try:
            return abs(self.now() - datetime.fromisoformat(saved))
        except (ValueError, TypeError):
            return timedelta.max

    def _renewed(self, answer: Answer) -> TunedConfig:
        """The stored settings and evidence around the task, learning rate and machine of today."""
        stored = answer.config
        same = stored.keep_batch()
        fits = self.candidates.refusal(same.settings) is None
        said = f"; stored on {answer.saved[:10]}, and run for one step before it was returned"
        evidence = dataclasses.replace(stored.evidence, reason=stored.evidence.reason + said)
        if answer.among is not None:
            doubt = f"The stored answer was measured while {answer.among}: {_AGAIN}."
            evidence = dataclasses.replace(evidence, warnings=(*evidence.warnings, doubt))
        verdict = Verdict(
            settings=stored.settings,
            evidence=evidence,
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


def unsettled_because(
    tuned: TunedConfig, found: Found, races: Sequence[RaceResult], *, tried: int, interrupted: bool
) -> str | None:
    """Why an answer may not be given to the next call as well, in one clause; None: it may.

    A win is proven. A kept baseline is an answer only where every race was decided and not drowned in noise, or where
    a search that really tried others found none faster; not where time was too short, or the machine too busy.

    Args:
        tuned: The answer.
        found: What the search left.
        races: How the finalists raced.
        tried: Other settings that were measured.
        interrupted: Ctrl-C ended the run.
    """
    if interrupted:
        return "Ctrl-C ended it"
    if found.baseline is None:
        return "there was not even time to measure the baseline"
    if not tuned.evidence.kept_baseline:
        return None
    if any(race.noisy for race in races):
        return "the baseline was kept only because the machine was too noisy to decide the race"
    if any(race.undecided is not None or race.low is None for race in races) or (found.finalists and not races):
        return "the baseline was kept only because the race was not decided"
    if not races and tried < _ENOUGH_TRIED:
        return f"the baseline was kept with {tried} other settings tried, too few to say that nothing is faster"
    return None
