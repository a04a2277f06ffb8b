"""How a batch is nested: its parts, its tensors, and containers of the same kind around new parts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autotune.errors import TaskError

__all__ = ["DEPTH", "SCALARS", "children", "is_record", "leaves", "like_mapping", "like_record", "like_sequence"]

SCALARS = (str, bytes, bool, int, float, complex, type(None))
DEPTH = 8
"""How deep containers may be nested; guards against structures that hold themselves."""


def is_record(value: Any) -> bool:
    """Whether ``value`` is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def children(value: Any) -> list[Any]:
    """The parts of a container, in order; none of what is no container."""
    if isinstance(value, PackedSequence):
        return [value.data]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return list(value)
    if is_record(value):
        return [getattr(value, item.name) for item in dataclasses.fields(value)]
    if callable(getattr(value, "to", None)) and hasattr(value, "__dict__"):
        return list(vars(value).values())
    return []


def leaves(value: Any, depth: int = DEPTH) -> Iterator[Any]:
    """All tensors and arrays in ``value``, in order."""
    if isinstance(value, torch.Tensor) or hasattr(value, "nbytes"):
        yield value
    elif depth and not isinstance(value, SCALARS):
        for item in children(value):
            yield from leaves(item, depth - 1)


def like_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """``items`` in a mapping of the type of ``value``; TaskError where it cannot be made."""
    if type(value) is dict:
        return items
    if isinstance(value, MutableMapping):
        clone = copy.copy(value)
        clone.update(items)
        return clone
    return _constructed(value, items)


def like_sequence(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """``items`` in a list or tuple of the type of ``value``; TaskError where it cannot be made."""
    if type(value) is list:
        return items
    if isinstance(value, list):
        clone = copy.copy(value)
        clone[:] = items
        return clone
    make = getattr(type(value), "_make", None)
    return make(items) if make is not None else _constructed(value, items)


def like_record(value: Any, items: dict[str, Any]) -> Any:
    """A copy of the dataclass instance ``value`` whose fields are ``items``."""
    clone = copy.copy(value)
    for name, item in items.items():
        object.__setattr__(clone, name, item)
    return clone


def _constructed(value: Any, items: Any) -> Any:
    try:
        return type(value)(items)
    except TypeError as error:
        raise TaskError(
            f"A batch of type {type(value).__qualname__} cannot be moved to a device: {error}.",
            "Return a tuple, dict or dataclass from collate_fn, or give the type a to(device) method.",
        ) from error
