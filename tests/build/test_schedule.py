"""Schedulers built from data, and the user's own made to fit other step counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from autotune.build.schedule import build_schedule, group_rates, longest_count, rescale_steps, warms_up
from autotune.build.train_step import TrainStep
from autotune.errors import SettingsError, TaskError
from autotune.learning_rate import make_schedule
from autotune.settings import Settings

Make = Callable[[SGD, int], Any]


def sgd(lr: float = 0.4) -> SGD:
    """An optimizer of one parameter."""
    return SGD([nn.Parameter(torch.zeros(1))], lr=lr)


def rates(optimizer: SGD, scheduler: Any, steps: int) -> list[float]:
    """The learning rate of each of so many optimizer steps."""
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def _sequential(optimizer: SGD, n: int) -> SequentialLR:
    parts = [LinearLR(optimizer, 0.1, total_iters=2 * n), CosineAnnealingLR(optimizer, 8 * n)]
    return SequentialLR(optimizer, parts, milestones=[2 * n])


SCHEDULES: dict[str, Make] = {
    "OneCycleLR": lambda o, n: OneCycleLR(o, 0.4, total_steps=10 * n, cycle_momentum=False),
    "OneCycleLR, three phases": lambda o, n: OneCycleLR(
        o, 0.4, total_steps=10 * n, cycle_momentum=False, three_phase=True
    ),
    "CyclicLR": lambda o, n: CyclicLR(o, 0.1, 0.4, step_size_up=2 * n, step_size_down=3 * n, cycle_momentum=False),
    "CosineAnnealingLR": lambda o, n: CosineAnnealingLR(o, 10 * n),
    "CosineAnnealingWarmRestarts": lambda o, n: CosineAnnealingWarmRestarts(o, 4 * n),
    "StepLR": lambda o, n: StepLR(o, 3 * n),
    "MultiStepLR": lambda o, n: MultiStepLR(o, [2 * n, 5 * n, 5 * n]),
    "LinearLR": lambda o, n: LinearLR(o, 0.1, total_iters=4 * n),
    "PolynomialLR": lambda o, n: PolynomialLR(o, total_iters=10 * n),
    "SequentialLR": _sequential,
    "ChainedScheduler": lambda o, n: ChainedScheduler([StepLR(o, 3 * n), LinearLR(o, 0.5, total_iters=2 * n)]),
}


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_a_rescaled_schedule_is_the_one_built_for_the_new_steps(name: str) -> None:
    """Made for 32 steps per epoch and fitted to 8, it gives the very rates of one made for 8."""
    (old, new) = (sgd(), sgd())
    fitted, expected = SCHEDULES[name](old, 32), SCHEDULES[name](new, 8)
    changed, left = rescale_steps(fitted, 8 / 32)
    assert changed
    assert not left
    assert rates(old, fitted, 80) == pytest.approx(rates(new, expected, 80), rel=1e-9, abs=1e-12)


def test_decay_for_each_step_keeps_its_pull_per_epoch() -> None:
    """ExponentialLR has no count: its factor changes instead."""
    optimizer = sgd()
    scheduler = ExponentialLR(optimizer, 0.9)
    rescale_steps(scheduler, 1 / 4)
    assert rates(optimizer, scheduler, 3)[2] == pytest.approx(0.4 * 0.9**8)


class Own(StepLR):
    """A class of the user's."""


@pytest.mark.parametrize("make", [lambda o: LambdaLR(o, lambda step: 1.0), lambda o: Own(o, 100)])
def test_counts_that_cannot_be_read_are_said_and_stay(make: Callable[[SGD], Any]) -> None:
    """LambdaLR, and a class whose code nobody here knows."""
    scheduler = make(sgd())
    before = dict(scheduler.state_dict())
    changed, left = rescale_steps(scheduler, 0.5)
    assert not changed
    assert type(scheduler).__name__ in left[0]
    assert scheduler.state_dict() == before


def test_a_plateau_counts_epochs_and_is_left_in_peace() -> None:
    """Nothing to change, nothing to say."""
    assert rescale_steps(ReduceLROnPlateau(sgd()), 0.5) == ([], [])


def test_a_schedule_under_way_is_refused() -> None:
    """Half of it was counted in other steps."""
    optimizer = sgd()
    scheduler = StepLR(optimizer, 100)
    rates(optimizer, scheduler, 3)
    with pytest.raises(TaskError, match="stepped 3 times"):
        rescale_steps(scheduler, 0.5)


@pytest.mark.parametrize(
    ("name", "longest"),
    [("OneCycleLR", 80), ("StepLR", 24), ("MultiStepLR", 40), ("SequentialLR", 64), ("CyclicLR", 40)],
)
def test_the_longest_count_is_known(name: str, longest: int) -> None:
    """By which counts of epochs are told from counts of steps."""
    assert longest_count(SCHEDULES[name](sgd(), 8)) == longest
    assert longest_count(LambdaLR(sgd(), lambda step: 1.0)) is None


@pytest.mark.parametrize(
    ("name", "starts_low"),
    [("OneCycleLR", True), ("CyclicLR", True), ("LinearLR", True), ("SequentialLR", True), ("StepLR", False)],
)
def test_schedules_that_start_low_are_known(name: str, starts_low: bool) -> None:
    """So that no second warm-up comes on top."""
    assert warms_up(SCHEDULES[name](sgd(), 8)) is starts_low
    assert warms_up(None) is False


def test_the_rates_of_groups_are_those_training_began_with() -> None:
    """``initial_lr`` where there is one; after OneCycleLR, which starts low, its highest."""
    optimizer = SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.1, "initial_lr": 0.3}], lr=1.0)
    assert group_rates(optimizer) == [0.3]
    OneCycleLR(optimizer, 0.7, total_steps=9, cycle_momentum=False)
    assert group_rates(optimizer) == [0.7]


def test_building_neither_warns_nor_moves_the_highest_rate() -> None:
    """Each kind is built without a warning; one that starts high starts at the optimizer's rate."""
    for kind in ("onecycle", "cyclic", "cosine", "step", "multistep", "plateau"):
        optimizer = sgd()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schedule = make_schedule(kind, epochs=4, updates_per_epoch=5, lrs=group_rates(optimizer))  # type: ignore[arg-type]
            built = build_schedule(schedule, optimizer)
        assert f"torch.optim.lr_scheduler.{type(built).__name__}" == schedule.name
        assert warms_up(built) is schedule.warms_up
        assert schedule.warms_up or optimizer.param_groups[0]["lr"] == 0.4


def test_what_torch_refuses_is_one_clear_error() -> None:
    """An option of the right name and an impossible value."""
    with pytest.raises(SettingsError, match="OneCycleLR refuses"):
        build_schedule(make_schedule("onecycle", epochs=1, updates_per_epoch=9, lrs=[0.1], pct_start=7.0), sgd())


def test_a_plateau_is_refused_in_the_train_step() -> None:
    """It would be stepped without the figure that it watches."""
    model = nn.Linear(1, 1)
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(TaskError, match="once per epoch"):
        TrainStep(
            model,
            optimizer,
            loss=lambda *_: None,  # type: ignore[arg-type,return-value]
            settings=Settings(),
            device="cpu",
            scheduler=ReduceLROnPlateau(optimizer),
        )
