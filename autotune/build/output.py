"""A model's output without the graph it was computed in."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import Any

from torch import Tensor

__all__ = ["detached"]


def detached(output: Any) -> Any:
    """The output with its tensors detached.

    Args:
        output: A tensor, or lists, tuples, named tuples and mappings (Hugging Face outputs among them) of tensors.

    Returns:
        The same structure, sharing memory with ``output``; objects of other kinds are returned as they are.
    """
    if isinstance(output, Tensor):
        return output.detach()
    if isinstance(output, tuple) and hasattr(output, "_make"):
        return output._make(map(detached, output))
    if type(output) in (list, tuple):
        return type(output)(map(detached, output))
    if isinstance(output, MutableMapping):
        clone = copy.copy(output)
        for key, value in output.items():
            clone[key] = detached(value)
        return clone
    return output
