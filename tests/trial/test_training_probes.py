"""Probes about training itself: sweeps of the learning rate, and gradients at fixed weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.config.measuring import noise_probe, noise_scale_of
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe, outcome_from_json
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench

SAMPLES, DIMENSIONS = 8192, 16


class Point(nn.Module):
    """Weights whose loss on a sample x is |w - x|^2 / 2, and the rates at which they were moved."""

    def __init__(self, distance: float = 0.3) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.full((DIMENSIONS,), distance))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Loss of each sample."""
        return ((self.weights - samples) ** 2).sum(1) / 2


def mean_loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """The mean over the rows."""
    return model(batch[0]).mean()


def samples(count: int = SAMPLES) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(count, DIMENSIONS, generator=torch.Generator().manual_seed(3))


def exact(model: Point) -> float:
    """tr(S) / |G|^2 over all samples."""
    rows = samples()
    mean = rows.mean(0)
    return float(rows.var(0, unbiased=False).sum() / ((model.weights.detach() - mean) ** 2).sum())


Make = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[Make]:
    """Makes benches and closes them."""
    made: list[Bench] = []
    hardware = Hardware.detect(device="cpu")

    def make(model: nn.Module, count: int = SAMPLES, **arguments: Any) -> Bench:
        task = Task(model, TensorDataset(samples(count)), **{"training_step": mean_loss, **arguments}, device="cpu")
        made.append(Bench(task, hardware, Limits.of(hardware)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _asked(bench: Bench, probe: Probe) -> Measured:
    """The outcome after its way through JSON."""
    outcome = outcome_from_json(json.loads(json.dumps(bench.run(Probe.from_json(probe.to_json())).to_json())))
    assert isinstance(outcome, Measured), outcome
    return outcome


def _range_probe(**changes: Any) -> Probe:
    settings = changes.pop("settings", Settings(batch_size=64))
    return Probe(**{"kind": "lr_range", "settings": settings, "steps": 40, "rates": (1e-6, 10.0), **changes})


def test_a_sweep_takes_a_step_at_each_rate(bench: Make) -> None:
    """Rates from lowest to highest, each with the loss that it met; SGD on a quadratic diverges above 2."""
    measured = _asked(bench(Point(3.0), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)), _range_probe())
    rates = [rate for rate, _ in measured.sweep]
    losses = [loss for _, loss in measured.sweep if loss is not None]
    assert rates[0] == pytest.approx(1e-6)
    assert rates == sorted(set(rates))
    assert losses[0] == pytest.approx(80.0, rel=0.1)
    assert min(losses) < 15.0


def test_a_sweep_ends_where_the_loss_diverges(bench: Make) -> None:
    """What would come after it costs time and says nothing."""
    probe = _range_probe(rates=(1e-3, 1e6), steps=80)
    measured = _asked(bench(Point(3.0), optimizer=lambda p: torch.optim.SGD(p, lr=0.1)), probe)
    assert len(measured.sweep) < 80
    assert measured.sweep[-1][0] < 1e5


def test_a_loss_that_is_no_number_ends_a_sweep(bench: Make) -> None:
    """It travels as null."""

    def broken(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = mean_loss(model, batch)
        return loss if loss < 25 else loss * torch.nan

    measured = _asked(
        bench(Point(1.0), training_step=broken, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)),
        _range_probe(rates=(1.0, 100.0)),
    )
    assert measured.sweep[-1][1] is None


def test_accumulation_makes_one_loss_of_a_group(bench: Make) -> None:
    """Steps are optimizer steps: as many forward passes for each as there are micro-batches."""
    model = Point(3.0)
    rows: list[int] = []
    model.register_forward_hook(lambda _, args, __: rows.append(len(args[0])))
    asked = bench(model, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    asked.describe()
    rows.clear()
    settings = Settings(batch_size=16, gradient_accumulation_steps=4)
    measured = _asked(asked, _range_probe(settings=settings, rates=(1e-6, 1e-3), steps=30))
    assert len(measured.sweep) == 30
    assert len(rows) == 4 * measured.steps


def test_groups_keep_their_share_of_the_rate(bench: Make) -> None:
    """A group at a tenth of the first one's rate moves a tenth as far."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast, self.slow = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return (self.fast + self.slow).expand(len(rows))

    model, seen = Two(), []

    class Seen(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            seen.append([group["lr"] for group in self.param_groups])
            super().step(closure)

    def two_groups(_: Any) -> torch.optim.Optimizer:
        return Seen([{"params": [model.fast], "lr": 0.1}, {"params": [model.slow], "lr": 0.01}], lr=1.0)

    _asked(bench(model, optimizer=two_groups), _range_probe(rates=(1e-6, 1e-3), steps=30))
    assert all(slow == pytest.approx(fast / 10) for fast, slow in seen[-30:])


def test_a_short_window_makes_the_sweep_coarser(bench: Make) -> None:
    """Thirty rates at least, over the same range."""
    measured = _asked(bench(Point(3.0)), _range_probe(rates=(1e-6, 1e-3), steps=5000, window_s=1e-9))
    assert len(measured.sweep) == 30
    assert measured.sweep[-1][0] == pytest.approx(1e-3)


@pytest.mark.parametrize("distance", [1.0, 0.3, 0.1])
def test_the_noise_scale_is_that_of_the_closed_form(bench: Make, distance: float) -> None:
    """Within 25 % on a quadratic, at noise scales of 1 to 100 samples."""
    model = Point(distance)
    asked = bench(model)
    measured = _asked(asked, noise_probe(Settings(batch_size=32), asked.describe(), window_s=60.0))
    found = noise_scale_of(measured)
    assert found.b_simple == pytest.approx(exact(model), rel=0.25)
    assert (found.small_batch, found.large_batch) == (32, 256)


def test_a_sum_has_the_noise_scale_of_a_mean(bench: Make) -> None:
    """Losses that are summed over the rows are brought to the mean."""
    model = Point(0.3)
    asked = bench(model, training_step=lambda m, b: m(b[0]).sum())
    facts = asked.describe()
    assert facts.reduction == "sum"
    found = noise_scale_of(_asked(asked, noise_probe(Settings(batch_size=32), facts, window_s=60.0)))
    assert found.b_simple == pytest.approx(exact(model), rel=0.25)
    assert found.trace == pytest.approx(float(samples().var(0).sum()), rel=0.1)


def test_looking_at_gradients_moves_no_weight(bench: Make) -> None:
    """And clipping, which would hide their size, is off."""
    model = Point(0.3)
    before = model.weights.detach().clone()
    asked = bench(model, max_grad_norm=1e-3)
    probe = noise_probe(Settings(batch_size=32), asked.describe(), window_s=60.0)
    found = noise_scale_of(_asked(asked, probe))
    assert torch.equal(model.weights.detach(), before)
    assert found.square_gradient == pytest.approx(DIMENSIONS * 0.3**2, rel=0.3)


def test_few_samples_make_small_batches(bench: Make) -> None:
    """A group is at most a quarter of the data, or its gradients would be no random draw."""
    asked = bench(Point(), 320)
    probe = noise_probe(Settings(batch_size=64), asked.describe(), window_s=1.0)
    assert probe.settings.batch_size == 10
    measured = _asked(asked, probe)
    assert measured.largest_batch_rows == 10
    assert len(measured.square_norms) >= 4
