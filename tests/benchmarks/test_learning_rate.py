"""The benchmarks about the learning rate, at tiny size: what they count is what they say they count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.config import Evidence, TunedConfig
from autotune.hardware import Hardware, Limits
from autotune.learning_rate import LearningRatePlan
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench
from benchmarks import accuracy, noise_scale, range_test, schedules
from benchmarks.workloads import Workload


def test_suggestions_against_log_lr_are_right_and_those_against_lr_are_not() -> None:
    """On twenty curves: all but one at most, beside a few."""
    found = range_test.ratios(20, seed=5)
    assert range_test.right(found["log slope, three sweeps"]) >= 19
    assert range_test.right(found["linear slope"]) <= 5


def test_the_measured_noise_scale_is_set_beside_the_exact_one() -> None:
    """One noise scale, one run of each batch: the larger batches are within a quarter of it."""
    found = list(noise_scale.ratios(1, noise_scales=(30.0,)))
    assert [one.batch for one in found] == list(noise_scale.BATCHES)
    assert all(one.ratio == pytest.approx(1.0, abs=0.25) for one in found[1:])
    assert found[0].exact == pytest.approx(30.0, rel=0.01)


def test_every_schedule_is_torchs_own() -> None:
    """Equal to the last bit, over all optimizer steps of three epochs."""
    for rates, own in schedules.traces().values():
        assert len(rates) == 48
        assert rates == own


class _Signs(nn.Module):
    """A linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Scores."""
        return self.layer(rows)


def _signs() -> TensorDataset:
    rows = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(rows, (rows[:, 0] > 0).long())


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.fixture
def job() -> Workload:
    """Signs of a number."""
    return Workload(
        name="signs",
        summary="",
        model=_Signs,
        dataset=_signs,
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=_sgd,
        batch_size=8,
        held_out=_signs,
    )


def test_every_variant_trains_and_is_judged(job: Workload) -> None:
    """Default, batch kept, and each rule in each way; the table has a row for each."""
    task = Task(_Signs(), _signs(), loss_fn=nn.CrossEntropyLoss(), optimizer=_sgd, device="cpu", base_batch_size=8)
    hardware = Hardware.detect(device="cpu")
    config = TunedConfig(
        settings=Settings(batch_size=8),
        baseline=Settings(batch_size=8),
        learning_rate=LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=()),
        facts=Bench(task, hardware, Limits.of(hardware)).describe(),
        hardware=hardware,
        evidence=Evidence(kept_baseline=True, reason="not tuned"),
        task=task,
    )
    made = dict(accuracy.variants(config, 1, 8))
    assert len(made) == 2 + len(accuracy.RULES) * len(accuracy.WAYS)
    linear = made["free batch of 64, linear, warm-up"]
    assert (linear.learning_rate.factor, linear.learning_rate.warmup_steps) == (8.0, 20)
    assert made["free batch of 64, linear, bare"].learning_rate.warmup_steps == 0
    schedule = made["free batch of 64, sqrt, onecycle"].schedule
    assert schedule is not None
    assert schedule.kwargs["total_steps"] == 4
    chosen = ["default", "free batch of 64, linear, warm-up", "free batch of 64, sqrt, onecycle"]
    runs = [accuracy.train(job, made[name], seed=0, epochs=1, variant=name) for name in chosen]
    assert all(len(run.accuracies) == accuracy.PARTS for run in runs)
    assert runs[0].accuracies[-1] > 0.6
    assert len(list(accuracy.described(runs))) == 2 + len(chosen)


def test_the_time_to_an_accuracy_is_the_first_and_linear_between_two() -> None:
    """What is never reached is None."""
    run = accuracy.Run(variant="x", seed=0, accuracies=(0.2, 0.4, 0.3, 0.5), seconds=(1.0, 2.0, 3.0, 4.0))
    assert accuracy.time_to(run, 0.3) == pytest.approx(1.5)
    assert accuracy.time_to(run, 0.5) == pytest.approx(4.0)
    assert accuracy.time_to(run, 0.6) is None
