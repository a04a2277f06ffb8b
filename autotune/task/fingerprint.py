"""One hash of what a task is, the same in every process; weights and random state do not enter it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from autotune.task.batches import batch_signature
from autotune.task.identity import identity, tensor_identity, type_identity
from autotune.task.loader_parts import LoaderParts
from autotune.task.names import qualified_name
from autotune.task.parts import model_parts, part_text
from autotune.task.rng import rng_kept
from autotune.task.task import Task

__all__ = ["TaskIdentity", "task_fingerprint", "task_identity"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEPTH = 3
"""Levels of attributes: a dataset, its transform, the parts of that."""
_MODULE_ATTRIBUTES = (bool, int, float, str, tuple, FunctionType, BuiltinFunctionType)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """What a task is, as far as that makes its speed."""

    fingerprint: str
    """``sha256:`` and 64 hexadecimal digits."""
    parts: Mapping[str, str]
    """What goes into it, part by part, as ``autotune.task.parts`` writes them."""


def task_fingerprint(
    task: Task, model: nn.Module, batch: Any, *, data: LoaderParts | None = None, rows: int | None = None
) -> str:
    """The fingerprint alone of ``task_identity``, whose arguments these are."""
    return task_identity(task, model, batch, data=data, rows=rows).fingerprint


def task_identity(
    task: Task, model: nn.Module, batch: Any, *, data: LoaderParts | None = None, rows: int | None = None
) -> TaskIdentity:
    """Hash of the structure of a task, and its parts.

    In it: types, code, ``extra_repr``, plain attributes and parameter shapes of the model's modules; dataset,
    ``collate_fn``, sampler class and loss by name, compiled code and plain attributes; the batch's structure; the
    optimizer's class. Not in it: weights, learning rates, random state, devices.

    Code counts as compiled by this Python: comments and line numbers do not matter, and another minor version of
    Python gives another hash.

    Args:
        task: The task.
        model: Its model, built.
        batch: One batch of its data.
        data: Its data, resolved; None: as it was given. What a factory makes is what counts, not the factory.
        rows: Samples that were asked for in it; None: not known.

    Returns:
        The fingerprint, and its parts in words.

    Raises:
        TaskError: The optimizer callable failed.
    """
    with rng_kept():
        optimizer = task.optimizer.resolve(model).name
    data = data or task.data
    whole: dict[str, Any] = {
        "model": [_module_identity(name, module) for name, module in model.named_modules()],
        "data": _data_identity(data),
        "batch": batch_signature(batch, rows),
        "loss": [identity(task.loss_fn, _DEPTH), identity(task.training_step, _DEPTH)],
        "optimizer": optimizer,
    }
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return TaskIdentity(
        fingerprint=f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
        parts={
            **model_parts(model, whole["model"]),
            **_data_parts(data, whole["data"]),
            "batch": str(whole["batch"]),
            "loss_fn": part_text(_called(task.loss_fn), whole["loss"][0]),
            "training_step": part_text(_called(task.training_step), whole["loss"][1]),
            "optimizer": str(optimizer),
        },
    )


def _module_identity(name: str, module: nn.Module) -> list[Any]:
    parameters = module.named_parameters(recurse=False)
    buffers = module.named_buffers(recurse=False)
    return [
        name,
        type_identity(type(module)),
        _ADDRESS.sub("", module.extra_repr()),
        [[key, *tensor_identity(tensor), tensor.requires_grad] for key, tensor in parameters],
        [[key, *tensor_identity(tensor)] for key, tensor in buffers],
        {key: identity(value, 1) for key, value in vars(module).items() if _is_structural(key, value)},
    ]


def _is_structural(key: str, value: Any) -> bool:
    return not key.startswith("_") and key != "training" and isinstance(value, _MODULE_ATTRIBUTES)


def _data_identity(data: LoaderParts) -> dict[str, Any]:
    return {
        "dataset": identity(data.dataset_factory if data.dataset is None else data.dataset, _DEPTH),
        "samples": data.samples,
        "collate_fn": identity(data.collate_fn, _DEPTH),
        "sampler": qualified_name(type(data.sampler)),
        "batch_sampler": qualified_name(type(data.batch_sampler)),
    }


def _data_parts(data: LoaderParts, known: Mapping[str, Any]) -> dict[str, str]:
    dataset = data.dataset_factory if data.dataset is None else data.dataset
    return {
        "dataset": part_text(_called(dataset), known["dataset"]),
        "samples": str(known["samples"]),
        "collate_fn": part_text(_called(data.collate_fn), known["collate_fn"]),
        "sampler": _called(data.sampler),
        "batch_sampler": _called(data.batch_sampler),
    }


def _called(value: Any) -> str:
    """Without the module, which for a script depends on how it was started."""
    if value is None:
        return "none"
    return str(value.__qualname__ if hasattr(value, "__qualname__") else type(value).__qualname__)
