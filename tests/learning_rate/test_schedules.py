"""Schedules as data: counts that fit, torch's own names, and nothing else."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_args

import pytest
from torch.optim import lr_scheduler

from autotune.errors import SettingsError
from autotune.learning_rate import Schedule, ScheduleKind, make_schedule
from autotune.learning_rate.schedules import SCHEDULE_NAMES

KINDS = get_args(ScheduleKind)


def made(kind: Any, *, epochs: int = 9, updates: int = 20, **options: Any) -> Schedule:
    """A schedule of 9 epochs of 20 optimizer steps."""
    return make_schedule(kind, epochs=epochs, updates_per_epoch=updates, lrs=[0.4], **options)


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        ("onecycle", {"max_lr": 0.4, "total_steps": 180}),
        ("cyclic", {"base_lr": 0.1, "max_lr": 0.4, "step_size_up": 40}),
        ("cosine", {"milestones": [10]}),
        ("step", {"step_size": 60}),
        ("multistep", {"milestones": [90, 135]}),
        ("plateau", {"mode": "min", "factor": 0.1}),
    ],
)
def test_counts_follow_from_epochs_and_steps(kind: str, kwargs: dict[str, Any]) -> None:
    """Each kind is over, or turns, where the epochs say."""
    schedule = made(kind)
    assert {name: schedule.kwargs[name] for name in kwargs} == kwargs
    assert schedule.interval == ("epoch" if kind == "plateau" else "step")


def test_a_cosine_ends_with_the_last_step() -> None:
    """Warm-up and descent together are all optimizer steps, however long a changed batch wants to warm up."""
    for warmup in (0, 50, 10_000):
        schedule = made("cosine", warmup_steps=warmup)
        linear, cosine = (part["kwargs"] for part in schedule.schedulers)
        assert linear["total_iters"] + cosine["T_max"] == 180
        assert linear["total_iters"] >= min(warmup, 90)
    assert made("cosine", warmup_epochs=0).name.endswith("CosineAnnealingLR")


def test_groups_with_rates_of_their_own_keep_them() -> None:
    """Several different rates are a list, as torch takes it."""
    schedule = make_schedule("onecycle", epochs=2, updates_per_epoch=5, lrs=[0.1, 0.2])
    assert schedule.kwargs["max_lr"] == [0.1, 0.2]


@pytest.mark.parametrize("kind", KINDS)
def test_json_gives_the_schedule_back(kind: str) -> None:
    """Every kind survives the round trip."""
    schedule = made(kind)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@pytest.mark.parametrize("name", list(SCHEDULE_NAMES))
def test_every_name_and_argument_is_torchs_own(name: str) -> None:
    """Nothing is listed that the class does not take."""
    taken = inspect.signature(getattr(lr_scheduler, name)).parameters
    assert SCHEDULE_NAMES[name] <= set(taken)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "os.system"},
        {"name": "torch.optim.lr_scheduler.LambdaLR"},
        {"name": "torch.optim.lr_scheduler.warnings"},
        {"name": "StepLR"},
        {"name": 7},
        {"kwargs": {"optimizer": 1}},
        {"kwargs": {"scale_fn": "print"}},
        {"schedulers": [{"name": "torch.load", "kwargs": {}}]},
        {"name": "torch.optim.lr_scheduler.SequentialLR", "kwargs": {"milestones": [1]}},
    ],
)
def test_names_of_others_are_refused(changes: dict[str, Any]) -> None:
    """Classes outside the list, arguments that could hold code, and parts where none belong."""
    with pytest.raises(SettingsError):
        Schedule.from_json({**made("step").to_json(), **changes})


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("warm", {}),
        ("step", {"epochs": 0}),
        ("step", {"updates": 1.5}),
        ("step", {"pct_start": 0.3}),
        ("step", {"step_size": 3}),
        ("step", {"step_epochs": 10}),
        ("onecycle", {"total_steps": 3}),
        ("onecycle", {"lr_lambda": print}),
        ("cosine", {"warmup_epochs": -1}),
        ("multistep", {"milestone_epochs": "12"}),
        ("multistep", {"milestone_epochs": [99]}),
    ],
)
def test_what_cannot_be_is_refused(kind: str, arguments: dict[str, Any]) -> None:
    """Unknown kinds and options, counts that follow by themselves, and epochs outside the training."""
    with pytest.raises(SettingsError):
        made(kind, **arguments)


def test_a_schedule_without_a_rate_asks_for_one() -> None:
    """An optimizer class without lr needs max_lr."""
    with pytest.raises(SettingsError, match="max_lr"):
        make_schedule("onecycle", epochs=1, updates_per_epoch=9, lrs=[])
    assert make_schedule("onecycle", epochs=1, updates_per_epoch=9, lrs=[], max_lr=0.2).kwargs["max_lr"] == 0.2


def test_momentum_is_left_alone_unless_asked_for() -> None:
    """torch would cycle it by default."""
    assert made("onecycle").kwargs["cycle_momentum"] is False
    assert made("cyclic", cycle_momentum=True).kwargs["cycle_momentum"] is True
