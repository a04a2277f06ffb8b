"""The settings that may be tried for one task on one machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.hardware import Hardware, Limits
from autotune.settings import DOMAINS, Settings
from autotune.space.batch_rules import BatchRules, baseline_of, largest_effective
from autotune.space.knobs import dropped_knobs, values_to_try
from autotune.space.space import Space
from autotune.task import Facts

__all__ = ["Candidates"]

_ASSUMED_BATCH = 32
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The settings that may be tried for one task on one machine.

    Attributes:
        baseline: What the caller has, or the assumed defaults.
        baseline_given: The baseline comes from the caller's own DataLoader.
        base_batch_size: Batch the learning rate was chosen for.
        max_batch_size: Largest micro-batch.
        max_effective_batch_size: Largest effective batch; equal to the baseline's where it is locked.
        locked: Every candidate has the baseline's effective batch.
        split: The baseline's batch was split into accumulation steps because it did not fit.
        dropped: Knobs that stay as in the baseline: name -> reason.
        values: Values worth trying for the remaining knobs, best guess first, where they are few and fixed.
    """

    baseline: Settings
    baseline_given: bool
    base_batch_size: int
    max_batch_size: int
    max_effective_batch_size: int
    locked: bool
    dropped: Mapping[str, str]
    values: Mapping[str, tuple[Any, ...]]
    space: Space
    facts: Facts
    limits: Limits
    split: bool = False
    forbidden: Mapping[tuple[str, Any], str] = dataclasses.field(default_factory=dict)
    """Single values that turned out not to work, each with its reason."""

    @classmethod
    def of(cls, facts: Facts, hardware: Hardware, limits: Limits, rules: BatchRules, space: Space) -> Candidates:
        """Derives everything from the facts.

        Raises:
            SettingsError: The rules contradict each other.
        """
        base = rules.base_batch_size or facts.loader["batch_size"] or _ASSUMED_BATCH
        if facts.samples:
            base = min(base, facts.samples) if not facts.loader["given"] else base
        baseline = baseline_of(facts, rules, base)
        if hardware.accelerator is None:
            baseline = baseline.replace(pin_memory=False)  # torch ignores it there, with a warning each epoch
        effective = baseline.effective_batch_size or base
        values = values_to_try(facts, hardware, space, baseline)
        dropped = dropped_knobs(facts, hardware, space, baseline, values)
        return cls(
            baseline=baseline,
            baseline_given=facts.loader["given"],
            base_batch_size=base,
            max_batch_size=min(rules.max_batch_size or 2**24, facts.samples or 2**24),
            max_effective_batch_size=largest_effective(facts, rules, effective),
            locked=rules.effective_batch_size is not None,
            dropped=dropped,
            values={name: found for name, found in values.items() if name not in dropped},
            space=space,
            facts=facts,
            limits=limits,
        )

    def refusal(self, settings: Settings) -> str | None:
        """Why ``settings`` may not be tried; None: they may."""
        if settings == self.baseline:
            return None
        for name, (_, value) in self.baseline.differences(settings).items():
            if not settings.num_workers and name in _OF_WORKERS:
                continue  # they follow from there being no workers
            if (name, value) in self.forbidden:
                return f"{name}={value!r}: {self.forbidden[name, value]}"
            if name in self.dropped:
                return f"{name}: {self.dropped[name]}"
            if not self.space.allows(name, value):
                return f"{name}={value!r} is outside the space you allowed"
        if settings.num_workers > max(self.most_workers, self.baseline.num_workers):
            return f"num_workers: {self.facts.one_worker_only}"
        return self._batch_refusal(settings) or self.limit_refusal(settings)

    def without(self, knob: str, reason: str) -> Candidates:
        """The same without a knob that turned out not to work."""
        values = {name: found for name, found in self.values.items() if name != knob}
        return dataclasses.replace(self, dropped={**self.dropped, knob: reason}, values=values)

    def without_value(self, knob: str, value: object, reason: str) -> Candidates:
        """The same without one value of a knob; without the knob where no other is left to try."""
        left = tuple(one for one in self.values.get(knob, ()) if one != value)
        values = {**self.values, knob: left}
        dropped = self.dropped if left else {**self.dropped, knob: reason}
        return dataclasses.replace(
            self, values=values, dropped=dropped, forbidden={**self.forbidden, (knob, value): reason}
        )

    def shared(self, settings: Settings, num_workers: int, num_threads: int | None = None) -> Settings:
        """``settings`` with the cores shared out anew, as near to that as the caller's space allows.

        Workers are kept between epochs wherever that may be: starting them anew can cost more than a short epoch.

        Args:
            settings: The rest.
            num_workers: Wanted loader workers.
            num_threads: Wanted intra-op threads; None: as in ``settings``.
        """
        changes: dict[str, Any] = {}
        if num_threads is not None and "num_threads" not in self.dropped:
            changes["num_threads"] = self.space.nearest("num_threads", num_threads)
        if "num_workers" not in self.dropped:
            changes["num_workers"] = self.space.nearest("num_workers", min(num_workers, self.most_workers))
        shared = settings.replace(**changes)
        if not shared.num_workers or "num_workers" not in changes:
            return shared
        keep = "persistent_workers" not in self.dropped and self.space.allows("persistent_workers", True)
        ahead = self.space.nearest("prefetch_factor", shared.prefetch_factor or 2)
        return shared.replace(
            persistent_workers=keep or self.baseline.persistent_workers,
            prefetch_factor=ahead,
            multiprocessing_context=self.baseline.multiprocessing_context,
        )

    def with_own_workers(self, settings: Settings) -> Settings:
        """``settings`` with the baseline's workers."""
        return settings.replace(**{name: getattr(self.baseline, name) for name in ("num_workers", *_OF_WORKERS)})

    def with_split_baseline(self, baseline: Settings) -> Candidates:
        """The same rules around a baseline with smaller micro-batches, since the given one did not fit."""
        return dataclasses.replace(self, baseline=baseline, split=True)

    @property
    def most_workers(self) -> int:
        """Largest worker count that may be tried."""
        return 1 if self.facts.one_worker_only else DOMAINS["num_workers"].high

    def loading_bytes(self, settings: Settings) -> int:
        """Bytes of the batches that workers hold ready or under way."""
        ahead = settings.num_workers * ((settings.prefetch_factor or 0) + 1)
        return ahead * (settings.batch_size or 1) * self.facts.sample_bytes

    def loading_files(self, settings: Settings) -> int:
        """Files that a process holds open for batches under way, where tensors travel as descriptors."""
        if self.facts.caller.get("sharing_strategy") != "file_descriptor" or not settings.num_workers:
            return 0
        tensors = self.facts.batch_tensors + self.facts.sample_tensors * (settings.batch_size or 1)
        # A worker: two for each tensor not fetched yet. The training process: batches out of turn, about one a worker.
        return tensors * max(2 * (settings.prefetch_factor or 0), settings.num_workers)

    def _batch_refusal(self, settings: Settings) -> str | None:
        effective = settings.effective_batch_size
        if settings.batch_size is None or effective is None:
            return None
        if settings.batch_size > self.max_batch_size:
            return f"batch_size above {self.max_batch_size}"
        if self.locked and effective != self.baseline.effective_batch_size:
            return f"the effective batch is locked at {self.baseline.effective_batch_size}"
        if effective > self.max_effective_batch_size:
            return f"the effective batch would exceed {self.max_effective_batch_size}"
        return None

    def limit_refusal(self, settings: Settings) -> str | None:
        """Which limit of this machine the batches under way would break, with the remedy; None: none."""
        files = self.loading_files(settings) if self.limits.open_files is not None else 0
        return self.limits.refusal(
            self.loading_bytes(settings),
            files=files,
            in_workers=settings.num_workers > 0,
            copies_bytes=settings.num_workers * self.facts.worker_copy_bytes,
        )
