"""What is trained: model, data, loss and optimizer brought to one form, and one training step out of them.

``task`` checks what the user hands over; ``dataset``, ``loader_parts`` and ``optimizer_spec`` take data and optimizer
apart; ``samples``, ``batches``, ``inputs``, ``output``, ``computation`` and ``loss`` come from samples to a loss;
``workers``, ``identity``, ``parts``, ``fingerprint`` and ``facts`` say what is known about it.
"""

from __future__ import annotations

from autotune.task.facts import Facts
from autotune.task.fingerprint import TaskIdentity, task_fingerprint, task_identity
from autotune.task.loader_parts import LoaderParts
from autotune.task.loss import ResolvedLoss, StepLoss, resolve_loss
from autotune.task.optimizer_spec import OptimizerSpec
from autotune.task.samples import first_batch
from autotune.task.task import Task

__all__ = [
    "Facts",
    "LoaderParts",
    "OptimizerSpec",
    "ResolvedLoss",
    "StepLoss",
    "Task",
    "TaskIdentity",
    "first_batch",
    "resolve_loss",
    "task_fingerprint",
    "task_identity",
]
