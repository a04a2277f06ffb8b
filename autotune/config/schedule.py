"""Schedules of a tuned config: step counts that fit its batch and accumulation, and the user's own made to fit."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import Optimizer

from autotune.build.schedule import group_rates, longest_count, rescale_steps
from autotune.config.changes import updates_per_epoch
from autotune.errors import SettingsError, TaskError
from autotune.learning_rate import Schedule, ScheduleKind, make_schedule

if TYPE_CHECKING:
    from autotune.config.tuned_config import TunedConfig

__all__ = ["Interval", "fit_schedule", "recount", "rescheduled"]

Interval = Literal["step", "epoch"]
_logger = logging.getLogger("autotune")


def fit_schedule(
    config: TunedConfig,
    optimizer: Optimizer | None,
    *,
    epochs: int,
    kind: ScheduleKind,
    updates: int | None,
    options: Mapping[str, Any],
) -> Schedule:
    """The schedule of ``kind`` that fits a config's training.

    Args:
        config: Its settings give the optimizer steps per epoch.
        optimizer: Its learning rates are the highest ones; None: those of the config.
        epochs: Epochs to train.
        kind: See ``make_schedule``.
        updates: Optimizer steps per epoch; None: they follow from samples, batch and accumulation.
        options: See ``make_schedule``.

    Raises:
        TaskError: The number of samples, or the batch, is not known here, and ``updates`` is missing.
        SettingsError: As ``make_schedule``.
    """
    counted = updates if updates is not None else _updates(config)
    if counted is None:
        raise TaskError(
            "updates_per_epoch= is missing: samples per epoch or the batch are not known here.",
            "Pass the number of optimizer steps per epoch.",
        )
    rates = _rates(config) if optimizer is None else group_rates(optimizer)
    warmup = config.learning_rate.warmup_steps
    return make_schedule(
        kind, epochs=epochs, updates_per_epoch=counted, lrs=rates, warmup_steps=warmup, **dict(options)
    )


def rescheduled(config: TunedConfig, schedule: Schedule | None) -> TunedConfig:
    """``config`` with the like of another config's schedule, counted anew for its own settings.

    Args:
        config: To get the schedule.
        schedule: What is wanted; None: none.
    """
    if schedule is None:
        return dataclasses.replace(config, schedule=None)
    updates = _updates(config)
    fitted = fit_schedule(
        config,
        None,
        epochs=schedule.epochs,
        kind=schedule.kind,
        updates=schedule.updates_per_epoch if updates is None else updates,
        options=schedule.options,
    )
    return dataclasses.replace(config, schedule=fitted)


def recount(config: TunedConfig, scheduler: Any, interval: Interval) -> None:
    """Makes the step counts of the user's own scheduler fit the new number of optimizer steps per epoch, in place.

    Args:
        config: Its settings against its baseline.
        scheduler: Not stepped yet.
        interval: "step": it is stepped after each optimizer step, as ``TrainStep`` does. "epoch": it counts epochs, and
            stays as it is.

    Raises:
        SettingsError: Another interval.
        TaskError: It was stepped already, or its counts look like epochs.

    Warns:
        UserWarning: Its counts cannot be read (LambdaLR, classes of your own), and stay.
    """
    if interval not in ("step", "epoch"):
        raise SettingsError(f"scheduler_interval={interval!r} is not possible.", 'Use "step" or "epoch".')
    before = updates_per_epoch(config.facts.samples, config.baseline, drop_last=bool(config.facts.loader["drop_last"]))
    after = _updates(config)
    if interval == "epoch" or before is None or after is None or before == after:
        return
    longest, name = longest_count(scheduler), type(scheduler).__name__
    if longest is not None and longest < before:
        raise TaskError(
            f"The {name} would be over within its first epoch (its longest count is {longest}, an epoch had {before:,} "
            "optimizer steps), so it seems to count epochs.",
            'If you step it once per epoch, pass scheduler_interval="epoch"; train_step() steps it with the optimizer.',
        )
    changed, left = rescale_steps(scheduler, after / before)
    for one in changed:
        _logger.info("apply_to() has fitted to %d optimizer steps per epoch (before: %d): %s", after, before, one)
    for one in left:
        warnings.warn(
            f"{one}: an epoch had {before:,} optimizer steps and has {after:,} now. Check it by hand, or use "
            "tuned.scheduler(optimizer, epochs=...).",
            UserWarning,
            stacklevel=4,
        )


def _updates(config: TunedConfig) -> int | None:
    drop_last = bool(config.saved.dataloader.get("drop_last"))
    return updates_per_epoch(config.facts.samples, config.settings, drop_last=drop_last)


def _rates(config: TunedConfig) -> list[float]:
    """The highest learning rate of each parameter group, scaled."""
    factor = config.learning_rate.factor
    groups = [group.get("max_lr", group.get("initial_lr", group.get("lr"))) for group in config.facts.optimizer_groups]
    rates = [rate for rate in groups if isinstance(rate, (int, float))]
    if rates and len(rates) == len(groups):
        return [rate * factor for rate in rates]
    single = config.facts.optimizer_kwargs.get("lr")
    return [single * factor] if isinstance(single, (int, float)) else []
