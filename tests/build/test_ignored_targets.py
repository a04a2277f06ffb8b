"""Means over the targets that are not ignored, and micro-batches that weigh nothing, add up to the large batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.build.accumulation import AccumulationGroup
from autotune.build.train_step import TrainStep
from autotune.settings import Settings
from autotune.task import StepLoss, resolve_loss

_CLASSES = torch.tensor([1.0, 5.0, 0.2])


def _data(*, tokens: int | None, empty: bool) -> tuple[Tensor, Tensor]:
    """Inputs (24, 5[, tokens]) and classes of three, a third ignored, the second micro-batch of four wholly."""
    source = torch.Generator().manual_seed(3)
    shape = (24,) if tokens is None else (24, tokens)
    classes = torch.randint(3, shape, generator=source)
    classes = classes.where(torch.rand(shape, generator=source) > 0.3, -100)
    if empty:
        classes[4:8] = -100
    return torch.randn(24, 5, *shape[1:], generator=source), classes


def _model(tokens: int | None, last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(5, 3) if tokens is None else nn.Conv1d(5, 3, 1)
    return nn.Sequential(layer, last)


def _steps(model: nn.Module, loss: Any, batches: list[Any], **knobs: Any) -> list[list[Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[list[Tensor]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append([p.grad.clone() for p in model.parameters()]))
    settings = Settings(batch_size=4, gradient_accumulation_steps=3, **knobs)
    step = TrainStep(model, optimizer, loss=loss, settings=settings, device="cpu")
    for batch in batches:
        step(batch)
    return seen


@pytest.mark.parametrize("tokens", [None, 7])
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(
    ("loss_fn", "last"),
    [
        (nn.CrossEntropyLoss(), nn.Identity()),
        (nn.CrossEntropyLoss(weight=_CLASSES, label_smoothing=0.1), nn.Identity()),
        (nn.NLLLoss(weight=_CLASSES), nn.LogSoftmax(dim=1)),
        (functional.cross_entropy, nn.Identity()),
    ],
)
def test_ignored_and_weighted_targets_count_as_in_the_large_batch(
    loss_fn: Any, last: nn.Module, empty: bool, tokens: int | None
) -> None:
    """A micro-batch with few targets left weighs little; one with none weighs nothing, though its mean is NaN."""
    inputs, classes = _data(tokens=tokens, empty=empty)
    model = _model(tokens, last)
    loss = resolve_loss(loss_fn=loss_fn, model=model)
    batches = list(zip(inputs.split(4), classes.split(4), strict=True))
    found = _steps(model, loss, batches)
    assert len(found) == 2
    for gradients, x, y in zip(found, inputs.split(12), classes.split(12), strict=True):
        expected = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
        for one, other in zip(gradients, expected, strict=True):
            assert float((one - other).norm() / other.norm()) <= 1e-6


def test_where_nothing_is_ignored_not_a_bit_changes() -> None:
    """Counting targets gives what counting rows gives."""
    inputs, classes = _data(tokens=7, empty=False)
    classes = classes.clamp(min=0)
    model = _model(7, nn.Identity())
    counted = resolve_loss(loss_fn=nn.CrossEntropyLoss(), model=model)
    by_rows = resolve_loss(loss_fn=lambda output, target: functional.cross_entropy(output, target), model=model)
    batches = list(zip(inputs.split(4), classes.split(4), strict=True))
    for one, other in zip(_steps(model, counted, batches), _steps(model, by_rows, batches), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", [float, torch.tensor])
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_a_micro_batch_that_weighs_nothing_cannot_poison_its_group(
    kind: Callable[[float], Any], precision: Any
) -> None:
    """0 / 0 is NaN forward and backward and reaches no other; a group of nothing but such has the gradient 0."""
    model = nn.Linear(5, 1)
    inputs, mask = torch.ones(24, 5), torch.ones(24, 1)
    mask[4:8] = 0
    mask[12:] = 0

    def loss(net: nn.Module, batch: Any) -> StepLoss:
        return StepLoss(loss=(net(batch[0]) * batch[1]).sum() / batch[1].sum(), weight=kind(float(batch[1].sum())))

    batches = list(zip(inputs.split(4), mask.split(4), strict=True))
    found = _steps(model, loss, batches, precision=precision)
    assert len(found) == 2
    for gradients, expected in zip(found, (1.0, 0.0), strict=True):
        for one in gradients:
            torch.testing.assert_close(one, torch.full_like(one, expected), rtol=1e-3, atol=0)


@pytest.mark.parametrize("first", [True, False])
def test_a_weight_that_may_not_be_read_silences_a_nan_too(first: bool) -> None:
    """As on an accelerator: the loss and the gradient into it are 0."""
    group, losses = AccumulationGroup(2), [torch.tensor(float("nan")), torch.tensor(2.0)]
    weights, total = [torch.tensor(0.0), torch.tensor(3.0)], torch.tensor(0.0)
    for at in (0, 1) if first else (1, 0):
        losses[at].requires_grad_()
        total = total + group.weighted(losses[at], weights[at], None)
        group.add(weights[at])
    total.backward()
    factor = group.correction()
    assert factor is not None
    assert float(total.detach() * factor) == pytest.approx(2.0)
    assert losses[0].grad == 0
