"""What the mean of torch's classification losses is over."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autotune.task.loss_weight import is_exact, mean_weight
from autotune.task.names import qualified_name

_TARGET = torch.tensor([[0, 1, -100], [2, -100, 1]])
_CLASSES = torch.tensor([1.0, 10.0, 100.0])


class _Own(nn.CrossEntropyLoss):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return super().forward(output, target) * 2


@pytest.mark.parametrize(
    ("loss_fn", "target", "weight"),
    [
        (nn.CrossEntropyLoss(), _TARGET, 4),
        (nn.CrossEntropyLoss(), torch.tensor([0, 1, 1], dtype=torch.uint8), 3),
        (nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1), _TARGET.clamp(min=0), 4),
        (nn.CrossEntropyLoss(weight=_CLASSES), _TARGET, 1 + 10 + 100 + 10),
        (nn.CrossEntropyLoss(weight=_CLASSES, ignore_index=0), _TARGET.clamp(min=0), 10 + 100 + 10),
        (nn.NLLLoss(weight=_CLASSES), torch.tensor([0, 2], dtype=torch.uint8), 101),
        (functional.cross_entropy, _TARGET, 4),
        (functools.partial(functional.nll_loss, weight=_CLASSES, ignore_index=2), torch.tensor([0, 2, 1]), 11),
        (nn.CrossEntropyLoss(), torch.full((4,), -100), 0),
    ],
)
def test_targets_that_are_not_ignored_count_by_their_class_weight(loss_fn: Any, target: Any, weight: float) -> None:
    """Whatever the shape, the ignored class and the kind of integer."""
    found = mean_weight(loss_fn, target)
    assert found is not None
    assert float(found) == weight


@pytest.mark.parametrize(
    ("loss_fn", "target"),
    [
        (nn.CrossEntropyLoss(), torch.rand(4, 3)),
        (nn.CrossEntropyLoss(reduction="sum"), _TARGET),
        (functools.partial(functional.cross_entropy, reduction="sum"), _TARGET),
        (nn.CrossEntropyLoss(), {"labels": _TARGET}),
        (nn.MSELoss(), _TARGET),
        (lambda output, target: functional.cross_entropy(output, target), _TARGET),
        (_Own(), _TARGET),
    ],
)
def test_of_other_losses_nothing_is_claimed(loss_fn: Any, target: Any) -> None:
    """Probabilities are averaged over rows, sums are no means, and a function of the user's own is not looked into."""
    assert mean_weight(loss_fn, target) is None


def test_the_names_that_facts_keep_are_recognised() -> None:
    """A config that was loaded knows the loss by name only."""
    assert is_exact(qualified_name(nn.CrossEntropyLoss()))
    assert is_exact(qualified_name(functional.nll_loss))
    assert not is_exact(qualified_name(_Own()))
