"""The ways from a model and a batch to a loss."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autotune.task import StepLoss, resolve_loss

ROWS, CLASSES = 6, 3


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, ROWS * 4).reshape(ROWS, 4)


def classes() -> torch.Tensor:
    return torch.arange(ROWS) % CLASSES


def test_a_training_step_may_return_a_loss_or_a_loss_with_its_weight() -> None:
    """The weight comes back untouched."""
    model = nn.Linear(4, CLASSES)

    def plain(net: nn.Module, batch: Any) -> torch.Tensor:
        return functional.cross_entropy(net(batch[0]), batch[1])

    def weighted(net: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return plain(net, batch).reshape(1), torch.tensor(11)

    batch = (inputs(), classes())
    assert resolve_loss(training_step=plain, model=model, batch=batch)(model, batch).weight is None
    found = resolve_loss(training_step=weighted, model=model, batch=batch)(model, batch)
    assert isinstance(found, StepLoss)
    assert found.weight == 11
    assert found.loss.ndim == 0


@pytest.mark.parametrize(
    ("loss_fn", "reduction"),
    [
        (nn.CrossEntropyLoss(), "mean"),
        (nn.CrossEntropyLoss(reduction="sum"), "sum"),
        (functools.partial(functional.cross_entropy, reduction="sum"), "sum"),
        (functional.cross_entropy, "mean"),
    ],
)
def test_the_reduction_is_read_off_the_loss(loss_fn: Any, reduction: str) -> None:
    """Sums must not be averaged over accumulated batches."""
    assert (
        resolve_loss(loss_fn=loss_fn, model=nn.Linear(4, CLASSES), batch=(inputs(), classes())).reduction == reduction
    )


def test_class_weights_follow_the_output_and_the_users_loss_stays() -> None:
    """A loss module with buffers elsewhere is copied to the output's device."""
    loss_fn = nn.CrossEntropyLoss(weight=torch.ones(CLASSES))
    model = nn.Linear(4, CLASSES).to("meta")
    batch = (inputs().to("meta"), classes().to("meta"))
    found = resolve_loss(loss_fn=loss_fn, model=model)(model, batch)
    assert found.loss.device.type == "meta"
    assert loss_fn.weight is not None
    assert loss_fn.weight.device.type == "cpu"
