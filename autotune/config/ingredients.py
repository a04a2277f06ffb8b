"""What a builder needs beside the settings: from the task, from an argument, or a ``TaskError`` that names it."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.config.saved_task import SavedTask, is_torch_optimizer
from autotune.config.sections import base_optimizer_arguments
from autotune.errors import TaskError
from autotune.task import Facts, LoaderParts, OptimizerSpec, ResolvedLoss, Task, resolve_loss
from autotune.task.reduction import declared_reduction

__all__ = ["data_for", "loss_for", "optimizer_for"]

_LOAD_WITH_TASK = "or load the config with TunedConfig.load(path, task=Task(...))."


def data_for(dataset: Any, tuned: LoaderParts | None, saved: SavedTask, *, train: bool) -> LoaderParts:
    """The data to load from.

    Args:
        dataset: Given by the caller: a dataset or a DataLoader; None: the tuned one.
        tuned: The tuned data; None where the config was loaded without a task.
        saved: The task as JSON holds it.
        train: Whether to train on it; if not, no sampler is needed.

    Raises:
        TaskError: The dataset is missing, or what belongs to it: collate_fn, sampler, its own batches.
    """
    if dataset is None:
        if tuned is None:
            raise TaskError(
                "dataset= is missing: the config was loaded without a task.",
                f"Call dataloader(dataset), {_LOAD_WITH_TASK}",
            )
        return tuned
    parts = LoaderParts.of(dataset)
    if isinstance(dataset, DataLoader):
        return parts
    _check_own_parts(saved, tuned, train=train)
    if tuned is not None:
        kept = {name: getattr(tuned, name) for name in ("collate_fn", "worker_init_fn", "generator", "drop_last")}
        kept |= {"timeout": tuned.timeout, "in_order": tuned.in_order}
        shuffle = parts.shuffle if tuned.iterable else tuned.shuffle
    else:
        kept = {
            name: saved.dataloader[name] for name in ("drop_last", "timeout", "in_order") if name in saved.dataloader
        }
        shuffle = saved.dataloader.get("shuffle", parts.shuffle)
    return dataclasses.replace(parts, shuffle=bool(shuffle) and not parts.iterable, **kept)


def optimizer_for(facts: Facts) -> OptimizerSpec:
    """The optimizer of a config that was loaded without a task: a class of ``torch.optim``, one group.

    Args:
        facts: What the config knows of it.

    Raises:
        TaskError: It is another class, or has several parameter groups.
    """
    name, groups = facts.optimizer_name, len(facts.optimizer_groups)
    cls = getattr(torch.optim, name.rpartition(".")[2], None) if is_torch_optimizer(name) else None
    if groups > 1 or not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        what = f"{name} with {groups} parameter groups" if groups > 1 else name
        raise TaskError(
            f"The optimizer is missing: {what} cannot be built from JSON.",
            f"Build it yourself and call apply_to(optimizer), {_LOAD_WITH_TASK}",
        )
    return OptimizerSpec(cls=None, factory=_Constructor(cls, base_optimizer_arguments(facts)))


def loss_for(task: Task | None, saved: SavedTask, facts: Facts, model: nn.Module, loss_fn: Any) -> ResolvedLoss:
    """The loss to train with; nothing is run to find it.

    Args:
        task: The task; None where the config was loaded without one.
        saved: The task as JSON holds it.
        facts: What is known of the task.
        model: To be trained.
        loss_fn: Given by the caller, in place of the task's; None: the task's.

    Raises:
        TaskError: The loss was a guess, or is missing.
    """
    if loss_fn is None and saved.loss == "guess":
        raise TaskError(
            f"loss_fn= is missing: the loss was only inferred for measuring ({facts.loss}), and a wrong guess must "
            "not train.",
            "Call train_step(model, optimizer, loss_fn=...) with (output, target) -> loss.",
        )
    reduction = facts.reduction  # as found out on a batch
    if loss_fn is not None:
        return resolve_loss(loss_fn=loss_fn, model=model, reduction=declared_reduction(loss_fn) or reduction)
    if task is not None:
        return resolve_loss(loss_fn=task.loss_fn, training_step=task.training_step, model=model, reduction=reduction)
    if saved.loss == "model":
        return resolve_loss(model=model, reduction=reduction)
    if saved.loss == "training_step":
        raise TaskError(
            "training_step= is missing: the config was loaded without a task.",
            "Load it with TunedConfig.load(path, task=Task(..., training_step=...)).",
        )
    raise TaskError(
        "loss_fn= is missing: the config was loaded without a task.",
        f"Call train_step(model, optimizer, loss_fn=...), {_LOAD_WITH_TASK}",
    )


class _Constructor:
    """``(params) -> cls(params, **arguments)``; picklable."""

    def __init__(self, cls: type[torch.optim.Optimizer], arguments: dict[str, Any]) -> None:
        self._cls, self._arguments = cls, arguments

    def __call__(self, params: Any) -> torch.optim.Optimizer:
        return self._cls(params, **self._arguments)


def _check_own_parts(saved: SavedTask, tuned: LoaderParts | None, *, train: bool) -> None:
    """Refuses to train on another dataset without what the tuned one was loaded with."""
    own = {entry.partition(":")[0] for entry in saved.not_portable}
    if "batch_sampler" in own or saved.dataloader.get("batch_size") is None:
        what = "batch_sampler= is missing: the batches were the dataset's own"
    elif "sampler" in own and train:
        what = "sampler= is missing: the tuned one belongs to the tuned dataset"
    elif "collate_fn" in own and tuned is None:
        what = "collate_fn= is missing: the config was loaded without a task"
    else:
        return
    name = what.partition("=")[0]
    raise TaskError(f"{what}.", f"Pass a DataLoader that has it: dataloader(DataLoader(dataset, {name}=...)).")
