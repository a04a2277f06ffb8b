"""Checks of what a caller hands to a tuned config: its task, a model, an optimizer that must be scaled only once."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from autotune.errors import ConfigError, TaskError
from autotune.task import Task, TaskIdentity, first_batch, task_identity
from autotune.task.optimizer_spec import SCALED_MARK
from autotune.task.parts import differing_parts, in_words
from autotune.task.samples import described_rows

if TYPE_CHECKING:
    from autotune.config.tuned_config import TunedConfig

__all__ = [
    "check_file",
    "check_model",
    "check_task",
    "fingerprint_of",
    "identity_of",
    "mark_scaled",
    "refuse_scaled",
    "warn_of_other_task",
]


def check_file(path: Any) -> str:
    """``path`` as text.

    Args:
        path: What the caller gave as a file.

    Raises:
        ConfigError: It is no path.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise ConfigError(f"{path!r} is no path of a config.", "Pass a str or pathlib.Path.")
    where = os.fsdecode(path)
    if "\0" in where:
        raise ConfigError(f"{where!r} is no path of a config: it holds a null character.", "Check the path.")
    return where


def check_task(task: Any) -> None:
    """Refuse what is no task.

    Args:
        task: What the caller gave as a task; None is fine.

    Raises:
        TaskError: It is neither a ``Task`` nor None.
    """
    if task is not None and not isinstance(task, Task):
        raise TaskError(f"task must be an autotune.Task, not {type(task).__name__}.", "Pass task=Task(model, dataset).")


def check_model(model: Any) -> None:
    """Refuse what is no model.

    Args:
        model: What the caller gave as a model.

    Raises:
        TaskError: It is no ``torch.nn.Module``.
    """
    if not isinstance(model, nn.Module):
        raise TaskError(f"model must be a torch.nn.Module, not {type(model).__name__}.", "Pass the model to train.")


def refuse_scaled(optimizer: Any, config: TunedConfig) -> None:
    """Refuse to scale the learning rates of an optimizer a second time.

    Args:
        optimizer: What the caller gave as an optimizer.
        config: Whose factor is to be applied.

    Raises:
        TaskError: It is no optimizer, or this config (or an equal one) has scaled these very rates already.
    """
    groups = getattr(optimizer, "param_groups", None)
    if not isinstance(groups, list):
        raise TaskError(f"optimizer must be a torch Optimizer, not {type(optimizer).__name__}.", "Pass the optimizer.")
    if config.learning_rate.factor != 1 and any(group.get(SCALED_MARK) == _digest(config) for group in groups):
        raise TaskError(
            "This config has scaled the learning rates of this optimizer already (apply_to() does it, and so does "
            f"optimizer()): they would be multiplied by {config.learning_rate.factor:g} a second time.",
            "Call apply_to() once, on an optimizer of your own.",
        )


def mark_scaled(optimizer: Optimizer, config: TunedConfig) -> None:
    """Remember in the optimizer that its rates were scaled.

    Args:
        optimizer: Scaled by ``config``.
        config: The config.
    """
    # In the groups, the mark is saved, loaded and replaced together with the rates that it is about.
    for group in optimizer.param_groups if config.learning_rate.factor != 1 else ():
        group[SCALED_MARK] = _digest(config)


def warn_of_other_task(config: TunedConfig, task: Task, model: nn.Module, *, stacklevel: int) -> None:
    """Warn where a loaded config was tuned for another task than the one it was loaded with.

    Args:
        config: A loaded config.
        task: The task it was loaded with.
        model: The task's model.
        stacklevel: As of ``warnings.warn``.

    Warns:
        UserWarning: The fingerprints differ.
    """
    if config.stored is None:
        return
    here, there = identity_of(task, model), config.facts.identity
    if here.fingerprint != there.fingerprint:
        warnings.warn(
            f"The config was tuned for the task {config.stored.name!r}, which is not the task {task.name!r} given with "
            f"it ({in_words(differing_parts(there.parts, here.parts))}): its settings may not fit. Tune this task.",
            UserWarning,
            stacklevel=stacklevel,
        )


def fingerprint_of(task: Task, model: nn.Module) -> str:
    """The fingerprint alone of ``identity_of``, whose arguments these are."""
    return identity_of(task, model).fingerprint


def identity_of(task: Task, model: nn.Module) -> TaskIdentity:
    """The task's fingerprint with its parts, from one batch loaded here.

    Args:
        task: The task.
        model: Its model, built.
    """
    data = task.data.resolve()
    rows = described_rows(data, task.base_batch_size)
    batch = first_batch(data, rows=rows)
    return task_identity(task, model, batch, data=data, rows=rows)


def _digest(config: TunedConfig) -> str:
    what = [config.settings.to_json(), config.learning_rate.factor, config.facts.fingerprint, config.evidence.created]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
