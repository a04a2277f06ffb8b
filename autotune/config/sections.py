"""The sections of a saved config that another program trains with: settings turned into torch's own arguments.

Each value goes straight into the torch call that its key names; a dtype or memory format is the name of an attribute
of ``torch``. Nothing here needs the package to be read back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.config.saved_task import SavedTask
from autotune.learning_rate import LearningRatePlan
from autotune.settings import Settings

if TYPE_CHECKING:
    from autotune.task import Facts

__all__ = ["base_optimizer_arguments", "learning_rate_section", "optimizer_arguments", "portable_sections"]

_AUTOCAST_DTYPES = {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}


def portable_sections(
    settings: Settings, baseline: Settings, plan: LearningRatePlan, facts: Facts, saved: SavedTask
) -> dict[str, Any]:
    """The members of a document that follow from the settings, in the document's order.

    Args:
        settings: The knobs to train with.
        baseline: The knobs whose learning rate is the base.
        plan: What happens to the learning rate.
        facts: What is known of the task.
        saved: The task as JSON can hold it.
    """
    return {
        "dataloader": dict(saved.dataloader),
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "effective_batch_size": settings.effective_batch_size,
        "autocast": _autocast(settings, saved.device_type),
        "grad_scaler": _grad_scaler(settings, saved.device_type),
        "memory_format": "channels_last" if settings.channels_last else "preserve_format",
        "compile": _compile(settings),
        "torch": {
            "num_threads": settings.num_threads,
            "cudnn_benchmark": settings.cudnn_benchmark,
            "float32_matmul_precision": "high" if settings.precision == "tf32" else None,
        },
        "optimizer": _optimizer(settings, baseline, plan, facts),
    }


def learning_rate_section(plan: LearningRatePlan) -> dict[str, Any]:
    """The learning-rate plan as JSON values."""
    return {
        "factor": plan.factor,
        "rule": plan.rule,
        "capped": plan.capped,
        "warmup_steps": plan.warmup_steps,
        "notes": list(plan.notes),
        **({} if plan.weight_decay_factor == 1 else {"weight_decay_factor": plan.weight_decay_factor}),
    }


def base_optimizer_arguments(facts: Facts) -> dict[str, Any]:
    """Constructor arguments of the optimizer before tuning; of a single group, its own options.

    Args:
        facts: What is known of the task.
    """
    kwargs = dict(facts.optimizer_kwargs)
    if len(facts.optimizer_groups) == 1:
        options = _from_first_rate(facts.optimizer_groups[0])
        kwargs |= {name: value for name, value in options.items() if name in kwargs}
    return kwargs


def optimizer_arguments(
    kwargs: Mapping[str, Any], settings: Settings, *, lr_factor: float, weight_decay_factor: float = 1.0
) -> dict[str, Any]:
    """Constructor arguments of the optimizer: lr scaled, step implementation set.

    ``foreach=False`` alone selects torch's loop: an absent ``fused`` is then taken as off.

    Args:
        kwargs: The class's own arguments before tuning.
        settings: The knobs; only ``optimizer_implementation`` matters.
        lr_factor: Multiplies ``lr``, if there is one.
        weight_decay_factor: Multiplies ``weight_decay``, if there is one.
    """
    arguments = _scaled(kwargs, lr_factor, weight_decay_factor)
    if settings.optimizer_implementation is None:
        return arguments
    arguments = {name: value for name, value in arguments.items() if name not in ("foreach", "fused")}
    chosen = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}
    return arguments | chosen[settings.optimizer_implementation]


def _autocast(settings: Settings, device_type: str) -> dict[str, Any]:
    dtype = _AUTOCAST_DTYPES.get(settings.precision)
    return {"device_type": device_type, "dtype": dtype or "bfloat16", "enabled": dtype is not None}


def _grad_scaler(settings: Settings, device_type: str) -> dict[str, Any]:
    if settings.precision == "fp16-mixed":
        return {"device": device_type, "enabled": True}
    return {"enabled": False}


def _compile(settings: Settings) -> dict[str, Any] | None:
    if settings.compile_mode is None:
        return None
    return {"mode": settings.compile_mode, "scope": settings.compile_scope}


def _optimizer(settings: Settings, baseline: Settings, plan: LearningRatePlan, facts: Facts) -> dict[str, Any]:
    groups = [_from_first_rate(group) for group in facts.optimizer_groups]
    kwargs = base_optimizer_arguments(facts)
    return {
        "name": facts.optimizer_name,
        "kwargs": optimizer_arguments(
            kwargs, settings, lr_factor=plan.factor, weight_decay_factor=plan.weight_decay_factor
        ),
        "param_groups": [_scaled(group, plan.factor, plan.weight_decay_factor) for group in groups]
        if len(groups) > 1
        else [],
        "base_lr": kwargs.get("lr"),
        "base_batch_size": baseline.effective_batch_size,
        "lr_rule": plan.rule,
        "warmup_steps": plan.warmup_steps,
    }


def _from_first_rate(group: Mapping[str, Any]) -> dict[str, Any]:
    """The group as training began: a scheduler keeps the first rate in ``initial_lr`` and moves ``lr``."""
    options = dict(group)
    first = options.pop("initial_lr", None)
    return options if first is None else options | {"lr": first}


def _scaled(options: Mapping[str, Any], factor: float, decay_factor: float) -> dict[str, Any]:
    scaled = dict(options)
    for name, by in (("lr", factor), ("weight_decay", decay_factor)):
        if by != 1 and isinstance(scaled.get(name), (int, float)):
            scaled[name] = scaled[name] * by
    return scaled
