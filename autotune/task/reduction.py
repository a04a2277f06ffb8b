"""Whether a loss is the mean or the sum over the samples of a batch: as declared, else found out by trying."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from autotune.errors import TaskError
from autotune.task.batches import batch_rows
from autotune.task.rng import rng_kept
from autotune.task.rows import is_per_sample, lists_samples
from autotune.task.structure import DEPTH, SCALARS, children, is_record, like_mapping, like_record, like_sequence

__all__ = ["Reduction", "declared_reduction", "probed_reduction", "repeated_rows", "without_dropout"]

Reduction = Literal["mean", "sum"]

_FEWEST_ROWS = 2
"""BatchNorm cannot train on one."""
_TOLERANCE = 0.05
"""Relative; half precision and regularization terms stay within it, a sum is far outside."""
_LEAST_GROWTH = 0.5
"""Of a sum when the rows are doubled: 1, less what does not depend on the rows."""


class _NotRepeatable(Exception):
    """A part of the batch is of a kind whose rows cannot be picked."""


def declared_reduction(loss_fn: Any) -> Reduction | None:
    """The reduction that a loss function says it has.

    Args:
        loss_fn: A loss module, a function of ``torch.nn.functional``, or a ``functools.partial`` of one.

    Returns:
        Its ``reduction`` attribute or argument; None where it says nothing.
    """
    declared = getattr(loss_fn, "reduction", None)
    if isinstance(loss_fn, functools.partial):
        declared = loss_fn.keywords.get("reduction") or declared_reduction(loss_fn.func)
    elif declared is None and str(getattr(loss_fn, "__module__", "")).startswith("torch."):
        declared = _default_reduction(loss_fn)
    return declared if declared in ("mean", "sum") else None


def probed_reduction(loss: Callable[[nn.Module, Any], Any], model: nn.Module, batch: Any) -> tuple[Reduction, str]:
    """Compare the loss of some rows with that of the same rows twice (and, if it grew, three times).

    A mean stays equal, a sum grows with the rows. Random generators start equal each time, dropout is off, buffers,
    gradients and modes are put back. BatchNorm does not mind: the statistics of repeated rows are the same.

    Args:
        loss: (model, batch) -> something with a 0-dim ``loss``.
        model: In training mode, on the batch's device.
        batch: What the loader yields.

    Returns:
        The reduction, and a note where it could not be told ("mean" then; empty where it could).
    """
    batches = _repeated(batch)
    if not batches:
        return "mean", "The loss is taken for a mean over the batch: this batch cannot be repeated to find out."
    failure = "it neither stays equal nor grows with the batch"
    for mode in (without_dropout, _evaluating):
        try:
            with _kept(model), mode(model):
                found = _judged(lambda at: _value(loss, model, batches[at]))
        except Exception as error:  # whatever user code raises on such a batch; training itself does not meet it
            failure = f"on repeated rows it raised {type(error).__name__}"
            continue
        if found is not None:
            return found, ""
    return "mean", f"The loss is taken for a mean over the batch: {failure}."


def repeated_rows(batch: Any, *, rows: int, take: int, times: int) -> Any:
    """The first rows of a batch, several times over, in containers of the same kind.

    Args:
        batch: What the loader yields.
        rows: Samples in it.
        take: How many of them.
        times: How often.

    Returns:
        A batch of ``take * times`` rows; None where a part of it is of a kind whose rows cannot be picked.
    """
    try:
        return _picked(batch, rows, list(range(take)) * times, DEPTH)
    except (_NotRepeatable, TaskError):
        return None


def _default_reduction(function: Any) -> Any:
    try:
        parameter = inspect.signature(function).parameters.get("reduction")
    except (TypeError, ValueError):  # builtins have no signature
        return None
    return None if parameter is None else parameter.default


def _repeated(batch: Any) -> list[Any]:
    """Some rows once, twice and three times; empty where that cannot be."""
    try:
        rows = batch_rows(batch)
    except TaskError:  # nothing to count, nothing to repeat
        return []
    take = min(rows, max(_FEWEST_ROWS, rows // 3))
    made = [repeated_rows(batch, rows=rows, take=take, times=times) for times in (1, 2, 3)]
    return [] if any(one is None for one in made) else made


def _picked(value: Any, rows: int, indices: list[int], depth: int, *, listed: bool = False) -> Any:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return _picked_tensor(value, rows, indices)
    if isinstance(value, SCALARS):
        return value
    if not depth:
        raise _NotRepeatable
    if isinstance(value, (list, tuple)) and len(value) == rows and (listed or is_per_sample(list(value), rows)):
        return like_sequence(value, [value[index] for index in indices])
    inside = functools.partial(
        _picked, rows=rows, indices=indices, depth=depth - 1, listed=lists_samples(children(value), rows)
    )
    if type(value) in (list, tuple) or hasattr(value, "_make"):
        return like_sequence(value, [inside(item) for item in value])
    if isinstance(value, Mapping):
        return like_mapping(value, {key: inside(item) for key, item in value.items()})
    if is_record(value):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return like_record(value, {name: inside(item) for name, item in fields.items()})
    raise _NotRepeatable


def _picked_tensor(tensor: torch.Tensor, rows: int, indices: list[int]) -> torch.Tensor:
    if tensor.ndim == 0:
        return tensor
    if tensor.shape[0] != rows:
        raise _NotRepeatable
    return tensor.detach().index_select(0, torch.tensor(indices, device=tensor.device))


def _judged(value: Callable[[int], float]) -> Reduction | None:
    once = value(0)
    if not math.isfinite(once) or once == 0:
        return None
    doubled = value(1) / once - 1
    if abs(doubled) <= _TOLERANCE:
        return "mean"
    if not doubled >= _LEAST_GROWTH:
        return None
    # A contrastive loss grows too, with the logarithm of the rows; a sum grows by the same amount each time.
    tripled = value(2) / once - 1
    return "sum" if abs(tripled - 2 * doubled) <= _TOLERANCE * 2 * doubled else None


def _value(loss: Callable[[nn.Module, Any], Any], model: nn.Module, batch: Any) -> float:
    device = next((parameter.device for parameter in model.parameters()), None)
    with rng_kept(device), _kept(model):
        return float(loss(model, batch).loss.detach())


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Buffers (BatchNorm's, spectral norm's), gradients and modes put back."""
    modules = list(model.modules())
    buffers = [(module._buffers, dict(module._buffers)) for module in modules]
    values = [(buffer, buffer.clone()) for _, kept in buffers for buffer in kept.values() if buffer is not None]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in modules]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for live, kept in buffers:
            live.update(kept)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout layers in eval mode (left so), and no dropout inside of other layers (put back).

    Args:
        model: In training mode.
    """
    inside = [module for module in model.modules() if isinstance(module, (nn.RNNBase, nn.MultiheadAttention))]
    rates = [(module, module.dropout) for module in inside]
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.training = False
    try:
        for module in inside:
            module.dropout = 0.0
        yield
    finally:
        for module, rate in rates:
            module.dropout = rate


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    model.eval()
    yield
