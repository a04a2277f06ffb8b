"""Batches of any shape: moving them, counting their rows and bytes, and naming their structure."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autotune.errors import TaskError
from autotune.task.inputs import ModelInputs, call_model, split_inputs

__all__ = [
    "ModelInputs",
    "batch_bytes",
    "batch_rows",
    "batch_signature",
    "batch_tensors",
    "call_model",
    "sample_signature",
    "split_inputs",
    "to_device",
]

_SCALARS = (str, bytes, bool, int, float, complex, type(None))
_DEPTH = 8
"""How deep containers may be nested; guards against structures that hold themselves."""


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


def batch_rows(batch: Any) -> int:
    """Number of samples in a batch.

    All tensors (and lists of plain values) that agree on their first dimension decide; where they do not, the common
    length of the top-level fields (lists with one entry per sample), else the first tensor.

    Args:
        batch: What the loader yields.

    Returns:
        Rows.

    Raises:
        TaskError: There is nothing to count.
    """
    counts = list(_row_counts(batch, _DEPTH))
    if not counts:
        raise TaskError(
            f"The number of samples in a batch of type {type(batch).__name__} cannot be told: it holds no tensor.",
            "Let collate_fn return tensors, alone or in a tuple, dict or dataclass.",
        )
    if len(set(counts)) > 1:
        lengths = {len(item) for item in _children(batch) if isinstance(item, (list, tuple)) or _has_rows(item)}
        if len(lengths) == 1:
            return int(lengths.pop())
    return counts[0]


def batch_bytes(batch: Any) -> int:
    """Bytes of the tensors (and arrays) in a batch.

    Args:
        batch: What the loader yields.

    Returns:
        The sum over all of them; 0 where there are none.
    """
    return sum(int(leaf.nbytes) for leaf in _leaves(batch, _DEPTH) if hasattr(leaf, "nbytes"))


def batch_tensors(batch: Any) -> list[torch.Tensor]:
    """All tensors in a batch.

    Args:
        batch: What the loader yields.

    Returns:
        Them, in order.
    """
    return [leaf for leaf in _leaves(batch, _DEPTH) if isinstance(leaf, torch.Tensor)]


def batch_signature(batch: Any) -> str:
    """The structure of a batch, independent of how many rows it has.

    Args:
        batch: What the loader yields.

    Returns:
        Such as ``list(float32[*,3,32,32], int64[*])``, ``*`` being the rows.
    """
    counts = list(_row_counts(batch, _DEPTH))
    return _signature(batch, batch_rows(batch) if counts else None, _DEPTH)


def sample_signature(sample: Any) -> str:
    """The structure of one sample, its sizes included.

    Args:
        sample: What a dataset yields.

    Returns:
        Such as ``tuple(float32[3,32,32], int)``.
    """
    return _signature(sample, None, _DEPTH)


def _mapped(value: Any, move: Callable[[torch.Tensor], torch.Tensor], relocate: Callable[[Any], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, PackedSequence):  # its lengths must stay on the CPU
        return relocate(value)
    if isinstance(value, Mapping):
        if callable(getattr(value, "to", None)):
            value = relocate(copy.copy(value))
        return _like_mapping(value, {key: _mapped(item, move, relocate) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return _like_sequence(value, [_mapped(item, move, relocate) for item in value])
    if _is_record(value):
        clone = copy.copy(value)
        for item in dataclasses.fields(value):
            object.__setattr__(clone, item.name, _mapped(getattr(value, item.name), move, relocate))
        return clone
    return relocate(value) if callable(getattr(value, "to", None)) else value


def _like_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    if isinstance(value, MutableMapping):
        clone = copy.copy(value)
        clone.update(items)
        return clone
    return _constructed(value, items)


def _like_sequence(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    if type(value) is list:
        return items
    if isinstance(value, list):
        clone = copy.copy(value)
        clone[:] = items
        return clone
    make = getattr(type(value), "_make", None)
    return make(items) if make is not None else _constructed(value, items)


def _constructed(value: Any, items: Any) -> Any:
    try:
        return type(value)(items)
    except TypeError as error:
        raise TaskError(
            f"A batch of type {type(value).__qualname__} cannot be moved to a device: {error}.",
            "Return a tuple, dict or dataclass from collate_fn, or give the type a to(device) method.",
        ) from error


@lru_cache(maxsize=64)
def _takes_non_blocking(cls: type) -> bool:
    try:
        parameters = inspect.signature(cls.to).parameters.values()  # type: ignore[attr-defined]
    except (TypeError, ValueError, AttributeError):
        return False
    return any(p.name == "non_blocking" or p.kind is p.VAR_KEYWORD for p in parameters)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _children(value: Any) -> list[Any]:
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if _is_record(value):
        return [getattr(value, item.name) for item in dataclasses.fields(value)]
    if callable(getattr(value, "to", None)) and hasattr(value, "__dict__"):
        return list(vars(value).values())
    return []


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, torch.Tensor) or hasattr(value, "nbytes"):
        yield value
    elif depth and not isinstance(value, _SCALARS):
        for item in _children(value):
            yield from _leaves(item, depth - 1)


def _row_counts(value: Any, depth: int) -> Iterator[int]:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):  # tensors and arrays
        if shape:
            yield int(shape[0])
    elif isinstance(value, PackedSequence):
        yield int(value.batch_sizes[0])
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, _SCALARS) for item in value):
        yield len(value)
    elif isinstance(getattr(value, "num_graphs", None), int):  # batches of graphs concatenate their nodes
        yield int(value.num_graphs)
    elif depth and not isinstance(value, _SCALARS):
        for item in _children(value):
            yield from _row_counts(item, depth - 1)


def _signature(value: Any, rows: int | None, depth: int) -> str:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        sizes = ["*" if at == 0 and size == rows else str(int(size)) for at, size in enumerate(shape)]
        return f"{str(getattr(value, 'dtype', '?')).removeprefix('torch.')}[{','.join(sizes)}]"
    name = type(value).__name__
    if isinstance(value, _SCALARS) or not depth:
        return name
    if isinstance(value, Mapping):
        return f"{name}({', '.join(f'{key}={_signature(item, rows, depth - 1)}' for key, item in value.items())})"
    if _is_record(value):
        items = [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
        return f"{name}({', '.join(f'{key}={_signature(item, rows, depth - 1)}' for key, item in items)})"
    children = _children(value)
    if rows is not None and len(children) == rows and not all(_row_count(child) == rows for child in children):
        return f"{name}(* x {_common_signature(children, depth)})"  # one entry per sample
    return f"{name}({', '.join(_signature(item, rows, depth - 1) for item in children)})"


def _row_count(value: Any) -> int | None:
    return int(value.shape[0]) if _has_rows(value) else None


def _common_signature(samples: list[Any], depth: int) -> str:
    shapes = [tuple(sample.shape) for sample in samples if isinstance(sample, torch.Tensor)]
    if len(shapes) < len(samples) or len({len(shape) for shape in shapes}) > 1:
        return _signature(samples[0], None, depth - 1)
    sizes = [str(sizes[0]) if len(set(sizes)) == 1 else "?" for sizes in zip(*shapes, strict=True)]
    return f"{str(samples[0].dtype).removeprefix('torch.')}[{','.join(sizes)}]"
