"""How many samples a batch holds, also where they do not lie along the first dimension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from autotune.errors import TaskError
from autotune.task.inputs import split_inputs
from autotune.task.structure import DEPTH, SCALARS, children

__all__ = ["RowCounter", "batch_rows", "is_per_sample", "row_counts"]

_Count = tuple[int, Any]
"""Length along the first dimension, and the tensor or array that has it (None: something else said it)."""
_FIELDS = -1


def batch_rows(batch: Any, expected: int | None = None) -> int:
    """Number of samples in a batch.

    All tensors (and lists of plain values) that agree on their first dimension decide; where they do not, the common
    length of the top-level fields (lists with one entry per sample), else the first tensor.

    Args:
        batch: What the loader yields.
        expected: Samples that were asked for, where known. A tensor of this length (the target first) decides, be it
            along the second dimension: batches may be time-first, or hold all tokens in one row.

    Returns:
        Rows.

    Raises:
        TaskError: There is nothing to count.
    """
    return RowCounter(expected)(batch)


class RowCounter:
    """``batch_rows`` for the batches of one loader: a smaller batch is counted where a full one was.

    Args:
        expected: Samples of a full batch; None: not known.
    """

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._place: tuple[int, int] | None = None  # which of the counts, along which dimension

    def __call__(self, batch: Any) -> int:
        """Rows of ``batch``.

        Args:
            batch: What the loader yields.

        Returns:
            Rows.

        Raises:
            TaskError: There is nothing to count.
        """
        counts = list(row_counts(batch))
        if not counts:
            raise TaskError(
                f"The number of samples in a batch of type {type(batch).__name__} cannot be told: it holds no tensor.",
                "Let collate_fn return tensors, alone or in a tuple, dict or dataclass.",
            )
        if self._expected is not None:
            known = self._at_place(batch, counts)
            if known is not None:
                return known
            place = _place(batch, counts, self._expected)
            if place is not None:
                self._place = place
                return self._expected
        return _usual_rows(batch, counts)

    def _at_place(self, batch: Any, counts: list[_Count]) -> int | None:
        if self._place is None:
            return None
        index, dim = self._place
        if index == _FIELDS:
            return _common_length(batch)
        if index >= len(counts):
            return None
        count, value = counts[index]
        return count if dim == 0 else int(value.shape[dim]) if _dimensions(value) > dim else None


def row_counts(value: Any, depth: int = DEPTH) -> Iterator[_Count]:
    """Lengths along the first dimension of everything in a batch that has one, in order.

    Args:
        value: A batch, or a part of it.
        depth: How deep to look.

    Yields:
        The length, and the tensor or array that has it or None.
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):  # tensors and arrays
        if shape:
            yield int(shape[0]), value
    elif isinstance(value, PackedSequence):
        yield int(value.batch_sizes[0]), None
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, SCALARS) for item in value):
        yield len(value), None
    elif isinstance(getattr(value, "num_graphs", None), int):  # batches of graphs concatenate their nodes
        yield int(value.num_graphs), None
    elif depth and not isinstance(value, SCALARS):
        for item in children(value):
            yield from row_counts(item, depth - 1)


def is_per_sample(parts: list[Any], rows: int) -> bool:
    """Whether the parts of a container are its samples, one each, and not fields of all samples.

    Args:
        parts: Children of a container.
        rows: Samples in the batch.

    Returns:
        True where there are as many as rows, but not each of as many rows.
    """
    return len(parts) == rows and not all(_is_field(part, rows) for part in parts)


def _usual_rows(batch: Any, counts: list[_Count]) -> int:
    if len({count for count, _ in counts}) > 1:
        common = _common_length(batch)
        if common is not None:
            return common
    return counts[0][0]


def _common_length(batch: Any) -> int | None:
    """What the top-level fields with a length agree on."""
    parts = [item for item in children(batch) if not isinstance(item, PackedSequence)]
    lengths = {len(item) for item in parts if isinstance(item, (list, tuple)) or _has_rows(item)}
    return int(lengths.pop()) if len(lengths) == 1 else None


def _place(batch: Any, counts: list[_Count], expected: int) -> tuple[int, int] | None:
    """Where the expected length is found: which count, along which dimension."""
    if _common_length(batch) == expected:
        return _FIELDS, 0
    target = _target(batch)
    fitting = [index for index, (count, _) in enumerate(counts) if count == expected]
    if fitting:
        return next((index for index in fitting if counts[index][1] is target), fitting[0]), 0
    if len(counts) > 1 and len({count for count, _ in counts}) == 1:
        return None  # several agree on the first dimension: a smaller batch
    across = (index for index, (_, value) in enumerate(counts) if _dimensions(value) > 1 and value.shape[1] == expected)
    return next(((index, 1) for index in across), None)


def _target(batch: Any) -> Any:
    try:
        target = split_inputs(batch)[1]
    except TaskError:  # an empty sequence somewhere: it has no target
        return None
    return target if _has_rows(target) else None


def _is_field(part: Any, rows: int) -> bool:
    return len(part) == rows if isinstance(part, (list, tuple)) or _has_rows(part) else False


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0


def _dimensions(value: Any) -> int:
    return len(getattr(value, "shape", ()))
