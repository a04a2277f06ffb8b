"""A fresh optimizer for ``Settings``, and the learning rate scaled in one that is there already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.errors import SettingsError, TaskError
from autotune.oom import memory_failure
from autotune.settings import OptimizerImplementation, Settings
from autotune.task import OptimizerSpec
from autotune.task.optimizer_spec import constructor_parameters

__all__ = ["apply_to", "build_optimizer", "implementation_of", "refuse_foreign"]

# foreach=True beside fused=True is refused, and None beside None means torch's own choice: so both are always given.
_FLAGS: Mapping[OptimizerImplementation, Mapping[str, bool]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}

_RATE_KEYS = ("lr", "initial_lr", "max_lr", "min_lr")
"""Learning rates in a parameter group; the last two are kept there by OneCycleLR."""

_SCHEDULER_RATES = ("base_lrs", "max_lrs", "min_lrs", "eta_min", "_last_lr")
"""Learning rates that schedulers of torch hold themselves: all, CyclicLR, ReduceLROnPlateau, CosineAnnealing*, all."""


def build_optimizer(
    spec: OptimizerSpec,
    model: nn.Module,
    settings: Settings,
    *,
    lr_factor: float = 1.0,
    weight_decay_factor: float = 1.0,
) -> Optimizer:
    """A fresh optimizer over ``model``'s parameters, as the user's would be.

    It goes through the class's constructor (switching ``fused`` on a live optimizer leaves its state wrong), with
    every option of every parameter group kept. Groups that carry ``initial_lr`` start from it: that is the rate
    training began with, ``lr`` what a scheduler has made of it since.

    Args:
        spec: The user's optimizer: its class and groups, or a factory, which is called.
        model: Its parameters are optimized; names as when ``spec`` was made.
        settings: ``optimizer_implementation`` is used; None: as the user constructed it. An optimizer from a factory
            is built a second time through its class where it has another implementation.
        lr_factor: Multiplies the learning rate of every group.
        weight_decay_factor: Multiplies the weight decay of every group that has one.

    Returns:
        The optimizer, without state.

    Raises:
        SettingsError: The class or the device does not support the implementation.
        TaskError: The optimizer cannot be built again from what is known of it, or the factory does not return one.
    """
    wanted = settings.optimizer_implementation
    if spec.factory is not None:
        optimizer = spec.call_factory(model)
        if wanted is None or implementation_of(optimizer) == wanted:
            apply_to(optimizer, None, lr_factor, weight_decay_factor)
            return optimizer
        spec = OptimizerSpec.of(optimizer, model)
    if spec.cls is None:
        raise TaskError("The optimizer's class is not known.", "Pass an optimizer, or a callable that makes one.")
    flags = _flags(spec.cls, wanted)
    groups = [_group(group, flags, lr_factor, weight_decay_factor) for group in spec.param_groups(model)]
    arguments = {**spec.constructor_kwargs(), **flags}
    if "lr" in arguments:
        arguments["lr"] = _scaled(arguments["lr"], lr_factor)
    if "weight_decay" in arguments:
        arguments["weight_decay"] = _scaled(arguments["weight_decay"], weight_decay_factor)
    return _construct(spec.cls, groups, arguments, wanted)


def apply_to(optimizer: Optimizer, scheduler: Any, lr_factor: float, weight_decay_factor: float = 1.0) -> None:
    """Multiply the learning rates of a live optimizer, and of its schedule, in place. Call it once.

    Args:
        optimizer: Every group's ``lr`` and, where there, ``initial_lr`` and OneCycleLR's ``max_lr``/``min_lr``.
        scheduler: Its ``base_lrs`` and other rates, also of the schedulers inside a ``SequentialLR`` or
            ``ChainedScheduler``, so that the whole schedule is multiplied; None: none.
        lr_factor: The factor.
        weight_decay_factor: That of every group's weight decay.

    Raises:
        TaskError: The scheduler belongs to another optimizer.
    """
    refuse_foreign(scheduler, optimizer)
    for group in optimizer.param_groups:
        for key in _RATE_KEYS:
            if key in group:
                group[key] = _scaled(group[key], lr_factor)
        if group.get("weight_decay"):
            group["weight_decay"] = _scaled(group["weight_decay"], weight_decay_factor)
    if scheduler is not None:
        _scale_schedule(scheduler, lr_factor)


def refuse_foreign(scheduler: Any, optimizer: Optimizer) -> None:
    """Refuse a scheduler that is over another optimizer.

    Args:
        scheduler: What the caller gave as a scheduler; None is fine.
        optimizer: What it should be over.

    Raises:
        TaskError: It is over another one.
    """
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise TaskError("The scheduler belongs to another optimizer.", "Build it with the optimizer given here.")


def implementation_of(optimizer: Optimizer) -> OptimizerImplementation | None:
    """How the optimizer steps, by the flags of its first group.

    Returns:
        None where torch chooses, or where the class has one implementation only.
    """
    group = optimizer.param_groups[0]
    fused, foreach = group.get("fused"), group.get("foreach")
    if fused:
        return "fused"
    if foreach:
        return "foreach"
    return None if fused is None and foreach is None else "for-loop"


def _flags(cls: type[Optimizer], wanted: OptimizerImplementation | None) -> dict[str, bool]:
    """The constructor arguments for the implementation, those of them that the class takes."""
    if wanted is None:
        return {}
    names = constructor_parameters(cls)
    if wanted != "for-loop" and wanted not in names:
        raise SettingsError(
            f"optimizer_implementation={wanted!r}: {cls.__name__} has no such implementation.", "Leave it None."
        )
    return {name: value for name, value in _FLAGS[wanted].items() if name in names}


def _group(
    group: Mapping[str, Any], flags: Mapping[str, bool], lr_factor: float, decay_factor: float
) -> dict[str, Any]:
    rates = {key: group[key] for key in _RATE_KEYS if key in group}
    if "initial_lr" in rates:
        rates["lr"] = rates["initial_lr"]
    decay = {key: _scaled(group[key], decay_factor) for key in ("weight_decay",) if group.get(key)}
    return {**group, **{key: _scaled(rate, lr_factor) for key, rate in rates.items()}, **decay, **flags}


def _construct(
    cls: type[Optimizer], groups: list[dict[str, Any]], arguments: dict[str, Any], wanted: str | None
) -> Optimizer:
    try:
        return cls(groups, **arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        if memory_failure(error) is not None:
            raise
        if wanted is not None:
            cause = f"optimizer_implementation={wanted!r} does not work with this {cls.__name__}: {error}"
            raise SettingsError(cause, "Leave it None.") from error
        raise TaskError(
            f"{cls.__name__} cannot be built again from its options: {type(error).__name__}: {error}",
            "Pass a callable that makes it: optimizer=lambda params: ...",
        ) from error


def _scale_schedule(scheduler: Any, factor: float) -> None:
    for name in _SCHEDULER_RATES:
        rate = getattr(scheduler, name, None)
        if isinstance(rate, (list, tuple)):
            setattr(scheduler, name, [_scaled(item, factor) for item in rate])
        elif rate is not None:
            setattr(scheduler, name, _scaled(rate, factor))
    for inner in getattr(scheduler, "_schedulers", ()):
        _scale_schedule(inner, factor)


def _scaled(rate: Any, factor: float) -> Any:
    # A fresh tensor: a learning rate may be one, and the user's own must not change.
    return rate.detach() * factor if isinstance(rate, Tensor) else rate * factor
