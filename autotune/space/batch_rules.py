"""How the caller bounds batch sizes, and the baseline that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.errors import SettingsError
from autotune.settings import DOMAINS, Settings
from autotune.task import Facts

__all__ = ["BatchRules", "baseline_of", "largest_divisor", "largest_effective"]

_MOST_GROWTH = 8  # beyond 8x the batch, samples/s says less and less about training (DESIGN: effective batch)
_FEWEST_UPDATES = 20  # per epoch, when the effective batch is free


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """How the caller bounds batch sizes; validated against each other by ``Candidates.of``.

    Attributes mirror the arguments of ``autotune()``, but for ``earlier_batch_size``: a micro-batch that made up the
    locked effective batch before, for where the caller's own cannot.
    """

    base_batch_size: int | None = None
    effective_batch_size: int | Literal["keep"] | None = None
    max_batch_size: int | None = None
    max_effective_batch_size: int | None = None
    earlier_batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("base_batch_size", "max_batch_size", "max_effective_batch_size"):
            _check_positive(name, getattr(self, name))
        if self.effective_batch_size != "keep":
            _check_positive("effective_batch_size", self.effective_batch_size, ' or "keep"')


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of ``number`` that is at most ``most`` (1 at least)."""
    return next(size for size in range(min(number, max(1, most)), 0, -1) if number % size == 0)


def baseline_of(facts: Facts, rules: BatchRules, base: int) -> Settings:
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
        precision=facts.caller.get("precision", "fp32"),
        gradient_accumulation_steps=facts.caller.get("gradient_accumulation_steps", 1),
    )
    if batch_size is None:
        return settings
    wanted = rules.effective_batch_size
    effective = batch_size * settings.gradient_accumulation_steps if wanted in (None, "keep") else int(wanted)
    most = min(batch_size, rules.max_batch_size or batch_size)
    _check_size(effective, facts.samples, largest_micro=most)
    micro = largest_divisor(effective, most)
    if 2 * micro <= most and micro < effective:
        earlier = rules.earlier_batch_size
        if earlier is None or effective % earlier or earlier > (rules.max_batch_size or earlier):
            raise _no_even_split(effective, most)
        micro = earlier
    return settings.replace(batch_size=micro, gradient_accumulation_steps=effective // micro)


def _check_size(effective: int, samples: int | None, *, largest_micro: int) -> None:
    if samples and effective > samples and effective > largest_micro:
        raise SettingsError(
            f"effective_batch_size={effective} is more than the {samples} samples of an epoch.",
            "An optimizer step would take several epochs: give a smaller one.",
        )
    most_steps = DOMAINS["gradient_accumulation_steps"].high
    if effective > largest_micro * most_steps:
        raise SettingsError(
            f"effective_batch_size={effective} would take more than {most_steps} micro-batches per optimizer step.",
            "Give a smaller one, or larger batches.",
        )


def _no_even_split(effective: int, most: int) -> SettingsError:
    below, above = effective // most * most, -(-effective // most) * most
    near = " or ".join(str(size) for size in (below, above) if size)
    return SettingsError(
        f"effective_batch_size={effective} does not split into equal micro-batches of about {most} samples.",
        f"Use a multiple of it, such as {near}.",
    )


def largest_effective(facts: Facts, rules: BatchRules, effective: int) -> int:
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


def _check_positive(name: str, value: object, also: str = "") -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise SettingsError(f"{name}={value!r} is not possible.", f"Give a whole number of at least 1{also}.")
