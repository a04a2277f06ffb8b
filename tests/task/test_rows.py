"""How many samples a batch holds when it is known how many were asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autotune.task.batches import RowCounter, batch_rows, batch_signature


def time_first(rows: int, steps: int = 50) -> Any:
    return torch.zeros(steps, rows, 16), torch.zeros(rows, dtype=torch.int64)


def flat_tokens(rows: int) -> Any:
    return torch.zeros(rows * 7, dtype=torch.int64), torch.arange(rows), torch.zeros(rows)


def image_lists(rows: int) -> Any:
    return [torch.zeros(3, 8, 8)] * rows, [{"boxes": torch.zeros(2, 4)}] * rows


@pytest.mark.parametrize(
    "batch", [time_first(8), flat_tokens(8), image_lists(8), torch.zeros(50, 8, 16), {"x": torch.zeros(50, 8)}]
)
def test_the_length_asked_for_is_found_wherever_it_lies(batch: Any) -> None:
    """In the target, beside flat tokens, in lists, along the second dimension."""
    assert batch_rows(batch, 8) == 8


def test_without_a_length_nothing_changes() -> None:
    """The first dimension decides."""
    assert batch_rows(time_first(8)) == 50


@pytest.mark.parametrize("make", [time_first, flat_tokens, image_lists])
def test_a_smaller_last_batch_is_counted_where_a_full_one_was(make: Any) -> None:
    """Also where the short length would be read off another tensor."""
    count = RowCounter(8)
    assert [count(make(rows)) for rows in (8, 8, 3)] == [8, 8, 3]


def test_a_feature_dimension_of_the_batch_size_is_no_rows() -> None:
    """Rows that lay along the first dimension stay there, and tensors that agree on it are believed."""
    count = RowCounter(32)
    assert [count(torch.zeros(rows, 32)) for rows in (32, 5)] == [32, 5]
    assert batch_rows((torch.zeros(5, 32), torch.zeros(5)), 32) == 5


def test_another_structure_falls_back() -> None:
    """A batch without the tensor that was counted is counted as if it came first."""
    count = RowCounter(8)
    assert count(time_first(8)) == 8
    assert count(torch.zeros(4, 2)) == 4


def test_the_signature_marks_the_rows_asked_for() -> None:
    """The target's rows, not the time steps."""
    assert batch_signature(time_first(8), 8) == "tuple(float32[50,8,16], int64[*])"
