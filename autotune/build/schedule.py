"""Live schedulers of torch: built from a ``Schedule``, or the user's own with its step counts made to fit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from autotune.errors import SettingsError, TaskError
from autotune.learning_rate import Schedule

__all__ = ["build_schedule", "group_rates", "longest_count", "rescale_steps", "warms_up"]

_ANYWHERE = (lr_scheduler.ReduceLROnPlateau, lr_scheduler.ConstantLR)


def build_schedule(schedule: Schedule, optimizer: Optimizer) -> Any:
    """The scheduler that a schedule describes, over an optimizer.

    Args:
        schedule: Its names were checked when it was made: they are of ``torch.optim.lr_scheduler``, and few.
        optimizer: Whose rates it sets.

    Raises:
        SettingsError: torch refuses an argument.
    """
    try:
        if not schedule.schedulers:
            return _class(schedule.name)(optimizer, **schedule.kwargs)
        parts = [_class(part["name"])(optimizer, **part["kwargs"]) for part in schedule.schedulers]
        return lr_scheduler.SequentialLR(optimizer, parts, **schedule.kwargs)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise SettingsError(
            f"{schedule.name.rpartition('.')[2]} refuses its arguments: {error}", "Check the schedule's options."
        ) from error


def group_rates(optimizer: Optimizer) -> list[float]:
    """The highest learning rate of each parameter group: OneCycleLR's, else the one training begins with."""
    return [float(group.get("max_lr", group.get("initial_lr", group["lr"]))) for group in optimizer.param_groups]


def warms_up(scheduler: Any) -> bool:
    """Whether a scheduler starts below its highest rate, so that a warm-up on top would be a second one."""
    if isinstance(scheduler, (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR)):
        return True
    parts = getattr(scheduler, "_schedulers", None) or [scheduler]
    looked_at = parts[:1] if isinstance(scheduler, lr_scheduler.SequentialLR) else parts
    rising = (lr_scheduler.LinearLR, lr_scheduler.ConstantLR)
    return any(
        isinstance(one, lr_scheduler.LinearLR) and one.start_factor < one.end_factor for one in looked_at
    ) or any(isinstance(one, rising) and getattr(one, "factor", 1.0) < 1 for one in looked_at)


def longest_count(scheduler: Any) -> int | None:
    """The largest of a scheduler's step counts; None where it has none that is known here."""
    counts = [one for part in _parts(scheduler) for one in _counts(part)]
    return max(counts, default=None)


def rescale_steps(scheduler: Any, ratio: float) -> tuple[list[str], list[str]]:
    """Makes the step counts of a scheduler fit another number of optimizer steps per epoch, in place.

    Args:
        scheduler: One of torch's, not stepped yet; also the parts of a ``SequentialLR`` or ``ChainedScheduler``.
        ratio: New steps per epoch over old ones.

    Returns:
        What was changed, and what cannot be, in sentences.

    Raises:
        TaskError: It was stepped already: where its counts stand between the old and the new is anybody's guess.
    """
    if getattr(scheduler, "last_epoch", 0) > 0 and not isinstance(scheduler, _ANYWHERE):
        raise TaskError(
            f"The {type(scheduler).__name__} was stepped {scheduler.last_epoch} times already: its step counts cannot "
            "be made to fit another number of steps per epoch.",
            "Call apply_to() before the first step, or build a new one: tuned.scheduler(optimizer, epochs=...).",
        )
    changed: list[str] = []
    left: list[str] = []
    for part in _parts(scheduler):
        name = type(part).__name__
        rescale = _RESCALERS.get(name) if type(part).__module__ == lr_scheduler.__name__ else None
        if rescale is not None:
            changed += [f"{name}.{said}" for said in rescale(part, ratio)]
        elif not isinstance(part, _ANYWHERE[:1]):
            left.append(f"{name} computes its rates itself; nothing in it says how it counts steps")
    return changed, left


def _parts(scheduler: Any) -> list[Any]:
    """The scheduler, and all within it."""
    inner = [part for one in getattr(scheduler, "_schedulers", ()) for part in _parts(one)]
    return [scheduler, *inner]


def _counts(scheduler: Any) -> list[int]:
    found: list[int] = []
    for name in ("total_steps", "T_max", "step_size", "total_size", "T_0", "total_iters"):
        value = getattr(scheduler, name, None)
        found += [math.ceil(value)] if isinstance(value, (int, float)) else []
    for name in ("milestones", "_milestones"):
        found += [int(one) for one in getattr(scheduler, name, ())]
    return found


def _scaled(count: float, ratio: float) -> int:
    return max(1, round(count * ratio))


def _count(name: str) -> Callable[[Any, float], list[str]]:
    def rescale(scheduler: Any, ratio: float) -> list[str]:
        old = getattr(scheduler, name)
        setattr(scheduler, name, _scaled(old, ratio))
        return [f"{name} {old} -> {getattr(scheduler, name)}"]

    return rescale


def _onecycle(scheduler: Any, ratio: float) -> list[str]:
    old = scheduler.total_steps
    new = scheduler.total_steps = _scaled(old, ratio)
    phases = scheduler._schedule_phases  # each ends at a share of the total, less 1 (less 2: the second of three)
    for index, phase in enumerate(phases):
        less = 2 if (index, len(phases)) == (1, 3) else 1
        phase["end_step"] = (phase["end_step"] + less) * new / old - less
    return [f"total_steps {old} -> {new}"]


def _cyclic(scheduler: Any, ratio: float) -> list[str]:
    old = scheduler.total_size
    scheduler.total_size = float(max(2, round(old * ratio)))
    gamma = ""
    if scheduler.gamma != 1 and scheduler.scale_mode == "iterations":
        scheduler.gamma = scheduler.gamma ** (1 / ratio)
        gamma = f", gamma for each step {scheduler.gamma:.6g}"
    return [f"total_size {old:g} -> {scheduler.total_size:g}{gamma}"]


def _restarts(scheduler: Any, ratio: float) -> list[str]:
    old = scheduler.T_0
    scheduler.T_0 = scheduler.T_i = _scaled(old, ratio)
    return [f"T_0 {old} -> {scheduler.T_0}"]


def _multistep(scheduler: Any, ratio: float) -> list[str]:
    old = sorted(scheduler.milestones.elements())
    scheduler.milestones = Counter(_scaled(one, ratio) for one in old)
    return [f"milestones {old} -> {sorted(scheduler.milestones.elements())}"]


def _sequential(scheduler: Any, ratio: float) -> list[str]:
    old = list(scheduler._milestones)
    scheduler._milestones = [_scaled(one, ratio) for one in old]
    return [f"milestones {old} -> {scheduler._milestones}"]


def _exponential(scheduler: Any, ratio: float) -> list[str]:
    old = scheduler.gamma
    scheduler.gamma = old ** (1 / ratio)  # as much decay per epoch in fewer or more steps
    return [f"gamma {old:g} -> {scheduler.gamma:g}"]


def _nothing(scheduler: Any, ratio: float) -> list[str]:
    return []  # it only holds the others, which have their turn


_RESCALERS: Mapping[str, Callable[[Any, float], list[str]]] = {
    "OneCycleLR": _onecycle,
    "CyclicLR": _cyclic,
    "CosineAnnealingLR": _count("T_max"),
    "CosineAnnealingWarmRestarts": _restarts,
    "StepLR": _count("step_size"),
    "MultiStepLR": _multistep,
    "ExponentialLR": _exponential,
    "LinearLR": _count("total_iters"),
    "ConstantLR": _count("total_iters"),
    "PolynomialLR": _count("total_iters"),
    "SequentialLR": _sequential,
    "ChainedScheduler": _nothing,
}


def _class(name: str) -> type[Any]:
    found: type[Any] = getattr(lr_scheduler, name.rpartition(".")[2])
    return found
