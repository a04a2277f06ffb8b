"""What is worth trying here: allowed values, knobs that cannot matter (each with its reason), the baseline."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import SettingsError
from autotune.hardware import Hardware, Limits
from autotune.settings import DOMAINS, Settings
from autotune.task import Facts

__all__ = ["BatchRules", "Candidates", "Space", "largest_divisor"]

_ASSUMED_BATCH = 32
_MOST_GROWTH = 8  # beyond 8x the batch, samples/s says less and less about training (DESIGN: effective batch)
_FEWEST_UPDATES = 20  # per epoch, when the effective batch is free
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_UNLESS_ALLOWED = {"length_grouped": (False,)}  # knobs that are not free unless the caller says so


class Space:
    """The caller's own limits on what may be tried: knob name -> allowed values.

    Example: ``Space(num_workers=[0, 2, 4], precision=["fp32"])``. Knobs left out are free, but for
    ``length_grouped``, which changes the order of samples: ``Space(length_grouped=True)`` allows it. The baseline is
    always allowed: it is what the caller has.

    Args:
        **knobs: Any knob of ``Settings`` with a non-empty sequence of values from its domain.

    Raises:
        SettingsError: Unknown knob, or a value outside the knob's domain.
    """

    def __init__(self, **knobs: Sequence[Any] | bool) -> None:
        wanted = {name: _flag(name, values) for name, values in knobs.items()}
        for name, values in wanted.items():
            _check_knob(name, values)
        self._allowed: dict[str, tuple[Any, ...]] = {name: tuple(values) for name, values in wanted.items()}

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{name}={list(values)!r}' for name, values in self._allowed.items())})"

    def allows(self, name: str, value: object) -> bool:
        """Whether ``value`` may be tried for knob ``name``."""
        allowed = self._allowed.get(name, _UNLESS_ALLOWED.get(name))
        return allowed is None or any(type(value) is type(one) and value == one for one in allowed)

    def nearest(self, name: str, number: int) -> int:
        """The allowed number nearest to ``number`` by ratio; ``number`` itself where the knob is free."""
        allowed = [value for value in self._allowed.get(name, ()) if value is not None]
        return min(allowed, key=lambda value: abs(math.log2((value + 0.5) / (number + 0.5))), default=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """How the caller bounds batch sizes; validated against each other by ``Candidates.of``.

    Attributes mirror the arguments of ``autotune()``.
    """

    base_batch_size: int | None = None
    effective_batch_size: int | Literal["keep"] | None = None
    max_batch_size: int | None = None
    max_effective_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("base_batch_size", "max_batch_size", "max_effective_batch_size"):
            _check_positive(name, getattr(self, name))
        if self.effective_batch_size != "keep":
            _check_positive("effective_batch_size", self.effective_batch_size, ' or "keep"')


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
        baseline = _baseline(facts, rules, base)
        if hardware.accelerator is None:
            baseline = baseline.replace(pin_memory=False)  # torch ignores it there, with a warning each epoch
        effective = baseline.effective_batch_size or base
        dropped = {**_dropped_by_default(space), **_dropped(facts, hardware), **_dropped_by_caller(space, baseline)}
        return cls(
            baseline=baseline,
            baseline_given=facts.loader["given"],
            base_batch_size=base,
            max_batch_size=min(rules.max_batch_size or 2**24, facts.samples or 2**24),
            max_effective_batch_size=_largest_effective(facts, rules, effective),
            locked=rules.effective_batch_size is not None,
            dropped=dropped,
            values={name: found for name, found in _values(facts, hardware).items() if name not in dropped},
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
        in_workers = settings.num_workers > 0
        return self.limits.refusal(self.loading_bytes(settings), files=files, in_workers=in_workers)


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is at most ``most`` (1 at least)."""
    return next(size for size in range(min(number, max(1, most)), 0, -1) if number % size == 0)


def _baseline(facts: Facts, rules: BatchRules, base: int) -> Settings:
    given = facts.loader
    workers = given["num_workers"]
    batch_size = None if facts.batches_kept else given["batch_size"] or base
    settings = Settings(
        batch_size=batch_size,
        num_workers=workers,
        prefetch_factor=(given["prefetch_factor"] or 2) if workers else None,
        persistent_workers=bool(given["persistent_workers"]),
        pin_memory=bool(given["pin_memory"]),
        multiprocessing_context=given["multiprocessing_context"] if workers else None,
        cudnn_benchmark=bool(facts.caller.get("cudnn_benchmark", False)),
        num_threads=facts.caller.get("num_threads"),
    )
    if batch_size is None:
        return settings
    wanted = rules.effective_batch_size
    effective = batch_size if wanted in (None, "keep") else int(wanted)
    most = min(batch_size, rules.max_batch_size or batch_size)
    micro = largest_divisor(effective, most)
    if 2 * micro <= most and micro < effective:
        raise _no_even_split(effective, most)
    return settings.replace(batch_size=micro, gradient_accumulation_steps=effective // micro)


def _no_even_split(effective: int, most: int) -> SettingsError:
    below, above = effective // most * most, -(-effective // most) * most
    near = " or ".join(str(size) for size in (below, above) if size)
    return SettingsError(
        f"effective_batch_size={effective} does not split into equal micro-batches of about {most} samples.",
        f"Use a multiple of it, such as {near}.",
    )


def _largest_effective(facts: Facts, rules: BatchRules, effective: int) -> int:
    if rules.effective_batch_size is not None:
        return effective
    if rules.max_effective_batch_size is not None:
        if rules.max_effective_batch_size < effective:
            raise SettingsError(
                f"max_effective_batch_size={rules.max_effective_batch_size} is below the baseline's {effective}.",
                "Raise it, or lower base_batch_size or the DataLoader's batch_size.",
            )
        return rules.max_effective_batch_size
    most = _MOST_GROWTH * effective
    return max(effective, min(most, facts.samples // _FEWEST_UPDATES)) if facts.samples else most


def _dropped(facts: Facts, hardware: Hardware) -> dict[str, str]:
    accelerator = hardware.accelerator
    reasons = {
        "batch_size": facts.batches_kept,
        "gradient_accumulation_steps": None,
        "num_workers": facts.workers_refused or _stream_reason(facts),
        "pin_memory": None if accelerator else "no accelerator to copy to",
        "persistent_workers": _persistence_reason(facts),
        "multiprocessing_context": "kept as it is",
        "channels_last": None if facts.has_conv_4d else "no 4-D convolution weights",
        "compile_mode": _compile_reason(hardware, facts),
        "compile_scope": _compile_reason(hardware, facts) or _blocks_reason(facts),
        "activation_checkpointing": _blocks_reason(facts),
        "cudnn_benchmark": _cudnn_reason(_cuda(hardware), facts),
        "optimizer_implementation": _optimizer_reason(facts),
        "num_threads": "one usable core" if hardware.cores == 1 else None,
        "length_grouped": facts.order_kept or (None if facts.ragged else "all batches are of one size"),
        "precision": None if _precisions(facts, hardware) else _precision_reason(facts),
    }
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _persistence_reason(facts: Facts) -> str | None:
    if facts.has_set_epoch:
        return "the dataset's set_epoch() would not reach workers that are kept between epochs"
    return None


def _blocks_reason(facts: Facts) -> str | None:
    return None if facts.has_repeated_blocks else "the model has no blocks that occur more than once"


def _dropped_by_default(space: Space) -> dict[str, str]:
    if space.allows("length_grouped", True):
        return {}
    return {"length_grouped": "off unless space=Space(length_grouped=True): it changes the order of samples"}


def _dropped_by_caller(space: Space, baseline: Settings) -> dict[str, str]:
    pinned = {}
    for name in DOMAINS:
        allowed = space._allowed.get(name)
        if allowed is not None and all(value == getattr(baseline, name) for value in allowed):
            pinned[name] = "only the baseline's value is in the space you allowed"
    return pinned


def _values(facts: Facts, hardware: Hardware) -> dict[str, tuple[Any, ...]]:
    return {
        "precision": _precisions(facts, hardware),
        "channels_last": (True,),
        "pin_memory": (True,),
        "cudnn_benchmark": (True,),
        "compile_mode": ("default", "reduce-overhead") if _cuda(hardware) else ("default",),
        "compile_scope": ("blocks",),
        "optimizer_implementation": tuple(
            name for name in ("fused", "foreach") if name in facts.optimizer_implementations
        ),
    }


def _precisions(facts: Facts, hardware: Hardware) -> tuple[str, ...]:
    if facts.model_dtype != "float32" or facts.deterministic:
        return ()
    accelerator = hardware.accelerator
    if accelerator is None:
        return ("bf16-mixed",) if hardware.cpu_bf16_native else ()
    found = ["bf16-mixed"] if accelerator.bf16_native else ["fp16-mixed"]
    if accelerator.type == "cuda" and (accelerator.capability or (0, 0)) >= (8, 0):
        found.append("tf32")
    return tuple(found)


def _precision_reason(facts: Facts) -> str:
    if facts.model_dtype != "float32":
        return f"the model's parameters are {facts.model_dtype} already"
    if facts.deterministic:
        return "torch.use_deterministic_algorithms is on"
    return "this CPU only emulates bfloat16, many times slower"


def _stream_reason(facts: Facts) -> str | None:
    if facts.one_worker_only and facts.loader["num_workers"] > 1:  # what it yields depends on their number
        return f"kept as it is: {facts.one_worker_only}"
    return None


def _cuda(hardware: Hardware) -> bool:
    return hardware.accelerator is not None and hardware.accelerator.type == "cuda"


def _compile_reason(hardware: Hardware, facts: Facts) -> str | None:
    if not hardware.has_compiler:
        return "no C++ compiler for torch.compile to use"
    if facts.has_compiled_parts:
        return "parts of the model are results of torch.compile already"
    if facts.batches_kept:
        return "the user's own batches may differ in size, and each size would be compiled anew"
    return None


def _cudnn_reason(cuda: bool, facts: Facts) -> str | None:
    if not cuda:
        return "no CUDA device"
    return "torch.use_deterministic_algorithms is on" if facts.deterministic else None


def _optimizer_reason(facts: Facts) -> str | None:
    if facts.optimizer_implementations:
        return None
    return f"{facts.optimizer_name} has no other implementation here"


def _flag(name: str, values: Any) -> Any:
    """``length_grouped=True`` allows it, ``False`` does not."""
    return ((False, True) if values else (False,)) if name == "length_grouped" and isinstance(values, bool) else values


def _check_knob(name: str, values: Sequence[Any]) -> None:
    domain = DOMAINS.get(name)
    if domain is None:
        raise SettingsError(f"Unknown knob {name!r}.", f"Knobs are: {', '.join(DOMAINS)}.")
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise SettingsError(f"Space({name}={values!r}) is no list of values.", f"Give a list, e.g. {name}=[...].")
    for value in values:
        if not domain.holds(value):
            raise SettingsError(f"{name}={value!r} is not possible.", f"Allowed: {domain}.")


def _check_positive(name: str, value: object, also: str = "") -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise SettingsError(f"{name}={value!r} is not possible.", f"Give a whole number of at least 1{also}.")
