"""Weights of micro-batches add up exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.build.accumulation import AccumulationGroup, rescale_gradients


def combined(weights: list[Any], losses: list[float], size: int, usual: float | None) -> float:
    """The loss whose gradient a group ends up with."""
    group, total = AccumulationGroup(size), 0.0
    for weight, loss in zip(weights, losses, strict=True):
        total += float(group.share(weight, usual)) * loss
        group.add(weight)
    factor = group.correction()
    return total if factor is None else total * float(factor)


@given(
    parts=st.lists(st.tuples(st.integers(0, 500), st.floats(-9, 9)), min_size=1, max_size=9),
    missing=st.integers(0, 5),
    usual=st.sampled_from([None, 8.0]),
    as_tensors=st.booleans(),
)
@example(parts=[(0, 3.0), (4, 2.0)], missing=0, usual=None, as_tensors=True)
@example(parts=[(0, 3.0), (4, 2.0)], missing=0, usual=None, as_tensors=False)
@example(parts=[(0, 3.0)], missing=1, usual=None, as_tensors=True)
def test_any_group_gives_the_weighted_mean(
    parts: list[tuple[int, float]], missing: int, usual: float | None, as_tensors: bool
) -> None:
    """Short, uneven, and with micro-batches that weigh nothing: the result is that of one large batch."""
    weights, losses = [weight for weight, _ in parts], [loss for _, loss in parts]
    total = sum(weights)
    expected = sum(w * loss for w, loss in parts) / total if total else 0.0
    given_weights = [torch.tensor(float(w), dtype=torch.float64) for w in weights] if as_tensors else weights
    found = combined(given_weights, losses, len(parts) + missing, usual)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_full_even_group_needs_no_correction() -> None:
    """The usual case costs nothing at the group's end."""
    group = AccumulationGroup(4)
    for _ in range(4):
        assert group.share(8.0, 8) == 0.25
        group.add(8.0)
    assert group.full
    assert group.correction() is None
    group.clear()
    assert group.empty


def test_a_state_continues_a_group() -> None:
    """A saved group goes on where it was."""
    group, other = AccumulationGroup(4), AccumulationGroup(4)
    for weight in (3.0, 5.0):
        group.share(weight, None)
        group.add(weight)
    other.load_state_dict(group.state_dict())
    assert other.state_dict() == group.state_dict()
    assert (other.micro_batches, other.full, other.correction()) == (2, False, 12.0 / 8.0)


@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5)])
def test_gradients_are_rescaled_in_place_dense_and_sparse(factor: Any) -> None:
    """Dense and sparse gradients of several types are multiplied, missing ones skipped."""
    dense, half, missing = torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    table = torch.nn.Embedding(4, 2, sparse=True)
    dense.grad, half.grad = torch.full((2,), 3.0), torch.full((2,), 3.0, dtype=torch.bfloat16)
    table(torch.tensor([1, 1, 2])).sum().backward()
    kept = dense.grad
    rescale_gradients([dense, half, missing, table.weight], factor)
    assert dense.grad is kept
    assert dense.grad.tolist() == half.grad.tolist() == [1.5, 1.5]
    assert missing.grad is None
    assert table.weight.grad.to_dense().tolist() == [[0, 0], [1, 1], [0.5, 0.5], [0, 0]]
