"""Whether a loss is a mean or a sum."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from autotune.task import resolve_loss
from autotune.task.reduction import declared_reduction, repeated_rows

ROWS = 8


def batch() -> Any:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, 6, generator=generator), torch.arange(ROWS) % 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        spectral_norm(nn.Linear(6, 16)), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def summed(output: Any, target: Any) -> torch.Tensor:
    return functional.cross_entropy(output, target, reduction="sum")


def mean(output: Any, target: Any) -> torch.Tensor:
    return functional.cross_entropy(output, target)


class Scored(nn.Module):
    """Computes its own loss."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.inner, self.loss = net(), loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.loss(self.inner(x), labels)}


class Recurrent(nn.Module):
    """Dropout that is no layer of its own, and one that is a function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(6, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.score = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, _ = self.layers(x[:, None])
        return self.score(functional.dropout(seen[:, -1], 0.5, self.training))


@pytest.mark.parametrize(("loss_fn", "reduction"), [(summed, "sum"), (mean, "mean")])
@pytest.mark.parametrize("model", [net, Recurrent])
def test_a_hidden_reduction_is_found(loss_fn: Any, reduction: str, model: Any) -> None:
    """A function tells nothing; the loss of repeated rows does, whatever dropout and normalisation do."""
    found = resolve_loss(loss_fn=loss_fn, model=model(), batch=batch())
    assert (found.reduction, found.notes) == (reduction, ())


@pytest.mark.parametrize(("loss_fn", "reduction"), [(summed, "sum"), (mean, "mean")])
def test_training_steps_and_own_losses_are_probed_too(loss_fn: Any, reduction: str) -> None:
    """Whoever computes the loss."""
    step = resolve_loss(
        training_step=lambda model, batch: loss_fn(model(batch[0]), batch[1]), model=net(), batch=batch()
    )
    own = resolve_loss(model=Scored(loss_fn), batch=batch())
    assert (step.reduction, own.reduction) == (reduction, reduction)


def test_a_training_step_with_a_weight_is_a_mean() -> None:
    """The weight is what its loss was averaged over; it is not asked again."""
    calls = []

    def step(model: Any, batch: Any) -> Any:
        calls.append(1)
        return mean(model(batch[0]), batch[1]), 3.0

    assert resolve_loss(training_step=step, model=net(), batch=batch()).reduction == "mean"
    assert len(calls) == 1


def test_a_contrastive_loss_is_no_sum() -> None:
    """It grows with the logarithm of the rows: taken for a mean, and said."""

    def contrastive(output: Any, target: Any) -> torch.Tensor:
        return functional.cross_entropy(output @ output.T * 0, torch.arange(len(output)))

    found = resolve_loss(loss_fn=contrastive, model=net(), batch=tuple(part[:2] for part in batch()))
    assert found.reduction == "mean"
    assert "neither stays equal nor grows" in found.notes[0]


def test_a_regularized_sum_is_a_sum() -> None:
    """What does not depend on the rows does not hide it."""
    model = net()
    penalty = sum(parameter.detach().square().sum() for parameter in model.parameters())
    found = resolve_loss(loss_fn=lambda o, t: summed(o, t) + 0.02 * penalty, model=model, batch=batch())
    assert found.reduction == "sum"


def test_what_cannot_be_repeated_is_said() -> None:
    """Tokens of all samples in one row have no rows to pick."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 3)

        def forward(self, tokens: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            return self.bag(tokens, offsets)

    tokens = torch.arange(ROWS * 2) % 9, torch.arange(ROWS) * 2, torch.arange(ROWS) % 3
    found = resolve_loss(loss_fn=summed, model=Bag(), batch=tokens)
    assert found.reduction == "mean"
    assert "cannot be repeated" in found.notes[0]


def test_a_failure_on_repeated_rows_is_said() -> None:
    """A model for one batch size only can still be trained."""

    def picky(output: Any, target: Any) -> torch.Tensor:
        if len(output) != ROWS:
            raise ValueError("wrong size")
        return summed(output, target)

    found = resolve_loss(loss_fn=picky, model=net(), batch=batch())
    assert found.reduction == "mean"
    assert "raised ValueError" in found.notes[0]


def test_probing_leaves_no_trace() -> None:
    """Buffers, modes, gradients and generators are as after a single forward pass."""
    once, probed = net(), net()
    resolve_loss(loss_fn=nn.CrossEntropyLoss(), model=once, batch=batch())
    probed[0].weight_grad_marker = probed[4].weight.grad = torch.ones_like(probed[4].weight)
    state = torch.get_rng_state()
    resolve_loss(loss_fn=mean, model=probed, batch=batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(once.buffers(), probed.buffers(), strict=True))
    assert all(module.training for module in probed.modules())
    assert probed[4].weight.grad is probed[0].weight_grad_marker


def test_declared_reductions_need_no_probe() -> None:
    """Modules, functions of torch and partials of them say it themselves."""
    assert declared_reduction(nn.CrossEntropyLoss()) == "mean"
    assert declared_reduction(nn.MSELoss(reduction="sum")) == "sum"
    assert declared_reduction(functional.cross_entropy) == "mean"
    assert declared_reduction(functools.partial(functional.cross_entropy, reduction="sum")) == "sum"
    assert declared_reduction(functools.partial(functional.mse_loss)) == "mean"
    assert declared_reduction(mean) is None
    assert declared_reduction(nn.MSELoss(reduction="none")) is None


class Pair(NamedTuple):
    x: torch.Tensor
    names: list[str]


def test_rows_are_repeated_in_containers_of_the_same_kind() -> None:
    """Tensors by rows, lists by samples; numbers stay."""
    made = repeated_rows({"pair": Pair(torch.arange(3), ["a", "b", "c"]), "scale": 2.0}, rows=3, take=2, times=2)
    assert made["scale"] == 2.0
    assert isinstance(made["pair"], Pair)
    assert made["pair"].x.tolist() == [0, 1, 0, 1]
    assert made["pair"].names == ["a", "b", "a", "b"]
    assert repeated_rows((torch.arange(3), torch.arange(5)), rows=3, take=2, times=2) is None


@pytest.mark.parametrize("rows", [2, 3])
def test_lists_with_an_entry_per_sample_are_repeated_by_entry(rows: int) -> None:
    """Also where there are as many lists as samples (2), or as many samples as channels (3)."""
    images = [torch.full((3, 4 + row, 4), float(row)) for row in range(rows)]
    batch = (images, [{"boxes": torch.ones(row, 4)} for row in range(rows)])
    repeated = repeated_rows(batch, rows=rows, take=2, times=2)
    assert [len(part) for part in repeated] == [4, 4]
    assert [float(image.max()) for image in repeated[0]] == [0, 1, 0, 1]
    assert [len(target["boxes"]) for target in repeated[1]] == [0, 1, 0, 1]
