"""Batches of any shape: moving them, counting their rows and bytes, and naming their structure."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autotune.task.inputs import ModelInputs, call_model, split_inputs
from autotune.task.rows import RowCounter, batch_rows, is_per_sample, lists_samples, row_counts
from autotune.task.structure import (
    DEPTH,
    SCALARS,
    children,
    is_record,
    leaves,
    like_mapping,
    like_record,
    like_sequence,
)

__all__ = [
    "ModelInputs",
    "RowCounter",
    "batch_bytes",
    "batch_rows",
    "batch_signature",
    "batch_tensors",
    "call_model",
    "sample_signature",
    "split_inputs",
    "to_device",
]


def to_device(
    batch: Any, device: torch.device | str, *, non_blocking: bool = False, channels_last: bool = False
) -> Any:
    """The batch with its tensors on ``device``, in containers of the same types.

    Tuples, lists, named tuples, mappings (and subclasses), dataclasses and nestings of them are rebuilt; the batch
    handed over keeps its tensors. Objects and mappings with their own ``to`` move themselves.

    Args:
        batch: What the loader yields.
        device: Where to.
        non_blocking: Asynchronous copies out of pinned memory.
        channels_last: Give 4-D floating tensors the channels_last memory format; others are left alone.

    Returns:
        The moved batch; tensors that need no change are shared with the old one.

    Raises:
        TaskError: A container cannot be rebuilt.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.to(device, non_blocking=non_blocking)
        if channels_last and tensor.ndim == 4 and tensor.is_floating_point() and tensor.layout is torch.strided:
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def relocate(value: Any) -> Any:
        cls: type = type(value)
        return value.to(device, non_blocking=non_blocking) if _takes_non_blocking(cls) else value.to(device)

    return _mapped(batch, move, relocate)


def batch_bytes(batch: Any) -> int:
    """Bytes of the tensors (and arrays) in a batch.

    Args:
        batch: What the loader yields.

    Returns:
        The sum over all of them; 0 where there are none.
    """
    return sum(int(leaf.nbytes) for leaf in leaves(batch) if hasattr(leaf, "nbytes"))


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """All tensors in a batch.

    Args:
        batch: What the loader yields.

    Returns:
        Them, in order.
    """
    return [leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]


def batch_signature(batch: Any, expected: int | None = None) -> str:
    """The structure of a batch, independent of how many rows it has.

    Args:
        batch: What the loader yields.
        expected: Samples that were asked for, as in ``batch_rows``.

    Returns:
        Such as ``list(float32[*,3,32,32], int64[*])``, ``*`` being the rows.
    """
    counted = next(row_counts(batch), None) is not None
    return _signature(batch, batch_rows(batch, expected) if counted else None, DEPTH)


def sample_signature(sample: Any) -> str:
    """The structure of one sample, its sizes included.

    Args:
        sample: What a dataset yields.

    Returns:
        Such as ``tuple(float32[3,32,32], int)``.
    """
    return _signature(sample, None, DEPTH)


def _mapped(value: Any, move: Callable[[torch.Tensor], torch.Tensor], relocate: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, SCALARS):
        return value
    if isinstance(value, PackedSequence):  # its lengths must stay on the CPU
        return relocate(value)
    if isinstance(value, Mapping):
        if callable(getattr(value, "to", None)):
            value = relocate(copy.copy(value))
        return like_mapping(value, {key: _mapped(item, move, relocate) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return like_sequence(value, [_mapped(item, move, relocate) for item in value])
    if is_record(value):
        items = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
        return like_record(value, {name: _mapped(item, move, relocate) for name, item in items.items()})
    return relocate(value) if callable(getattr(value, "to", None)) else value


@lru_cache(maxsize=64)
def _takes_non_blocking(cls: type) -> bool:
    try:
        parameters = inspect.signature(cls.to).parameters.values()  # type: ignore[attr-defined]
    except (TypeError, ValueError, AttributeError):
        return False
    return any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in parameters)


def _signature(value: Any, rows: int | None, depth: int, *, listed: bool = False) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        sizes = ["*" if at == 0 and size == rows else str(int(size)) for at, size in enumerate(shape)]
        return f"{str(getattr(value, 'dtype', '?')).removeprefix('torch.')}[{','.join(sizes)}]"
    name = type(value).__name__
    if isinstance(value, SCALARS) or not depth:
        return name
    parts = children(value)
    inside = partial(_signature, rows=rows, depth=depth - 1, listed=rows is not None and lists_samples(parts, rows))
    if isinstance(value, Mapping):
        return f"{name}({', '.join(f'{key}={inside(item)}' for key, item in value.items())})"
    if is_record(value):
        items = [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
        return f"{name}({', '.join(f'{key}={inside(item)}' for key, item in items)})"
    if rows is not None and (is_per_sample(parts, rows) or (listed and len(parts) == rows)):
        return f"{name}(* x {_common_signature(parts, depth)})"
    return f"{name}({', '.join(map(inside, parts))})"


def _common_signature(samples: list[Any], depth: int) -> str:
    shapes = [tuple(sample.shape) for sample in samples if isinstance(sample, torch.Tensor)]
    if len(shapes) < len(samples) or len({len(shape) for shape in shapes}) > 1:
        return _signature(samples[0], None, depth - 1)
    sizes = [str(sizes[0]) if len(set(sizes)) == 1 else "?" for sizes in zip(*shapes, strict=True)]
    return f"{str(samples[0].dtype).removeprefix('torch.')}[{','.join(sizes)}]"
