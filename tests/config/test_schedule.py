"""Schedules of a tuned config: traces equal to torch's own, JSON there and back, the user's own made to fit."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from autotune.config import TunedConfig
from autotune.config.changes import changes
from autotune.config.file import check_document
from autotune.errors import ConfigError, SettingsError, TaskError
from autotune.settings import Settings
from autotune.task import Task

from .conftest import TinyNet, images, sgd

MakeConfig = Callable[..., TunedConfig]

# 300 samples: 19 batches of 16, the last of 12; groups of 4, the last of 3: 5 optimizer steps per epoch, 15 in all.
STEPS, EPOCHS, PEAK = 5, 3, 0.04


def task(samples: int = 300) -> Task:
    """The toy task with more samples."""
    loss = torch.nn.CrossEntropyLoss()
    return Task(TinyNet, images(samples), loss_fn=loss, optimizer=sgd, device="cpu", name="tiny")


def _cosine(o: SGD) -> SequentialLR:
    parts = [LinearLR(o, 0.01, total_iters=5), CosineAnnealingLR(o, 10)]
    return SequentialLR(o, parts, milestones=[5])


TORCHS_OWN: dict[str, tuple[dict[str, Any], Callable[[SGD], Any]]] = {
    "onecycle": ({}, lambda o: OneCycleLR(o, PEAK, total_steps=15, pct_start=0.3, cycle_momentum=False)),
    "cyclic": (
        {"half_cycle_epochs": 1},
        lambda o: CyclicLR(o, PEAK / 4, PEAK, step_size_up=5, cycle_momentum=False),
    ),
    "cosine": ({"warmup_epochs": 1}, _cosine),
    "step": ({}, lambda o: StepLR(o, 5, 0.1)),
    "multistep": ({"milestone_epochs": [1, 2]}, lambda o: MultiStepLR(o, [5, 10], 0.1)),
}


@pytest.mark.parametrize("kind", list(TORCHS_OWN))
def test_three_epochs_with_accumulation_have_the_rates_of_torchs_own(make_config: MakeConfig, kind: str) -> None:
    """Uneven batches and a short last group included, each optimizer step has the rate that torch's class gives."""
    options, own = TORCHS_OWN[kind]
    config = make_config(of=task())
    model = config.prepare(TinyNet())
    optimizer = config.optimizer(model)
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    scheduler = config.scheduler(optimizer, EPOCHS, kind=kind, **options)
    step = config.train_step(model, optimizer, scheduler)
    warmed = config.learning_rate.warmup_steps and not isinstance(scheduler, (OneCycleLR, CyclicLR, SequentialLR))
    for _ in range(EPOCHS):
        for batch in config.dataloader():
            step(batch)
        step.flush()
    bare = SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    expected = own(bare)
    rates = []
    for _ in range(EPOCHS * STEPS):
        rates.append(bare.param_groups[0]["lr"])
        bare.step()
        expected.step()
    if warmed:  # TrainStep's own, on top of a schedule without one
        w = config.learning_rate.warmup_steps
        rates = [rate * min(1.0, 0.25 + 0.75 * i / w) for i, rate in enumerate(rates)]
    assert seen == pytest.approx(rates, rel=1e-12)
    assert scheduler.last_epoch == EPOCHS * STEPS


@pytest.mark.parametrize("kind", ["onecycle", "cyclic", "cosine", "step", "multistep", "plateau"])
def test_json_holds_the_schedule_under_torchs_names(make_config: MakeConfig, kind: str) -> None:
    """It keeps to the schema, comes back equal, and builds the same scheduler without the task."""
    config = make_config(of=task()).with_schedule(EPOCHS, kind=kind)  # type: ignore[arg-type]
    document = json.loads(json.dumps(config.to_json()))
    check_document(document, "test")
    assert document["scheduler"]["name"].startswith("torch.optim.lr_scheduler.")
    loaded = TunedConfig.from_json(document)
    assert loaded.schedule == config.schedule
    assert loaded.to_json() == document
    optimizers = [SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK) for _ in range(2)]
    fresh, again = (one.scheduler(o) for one, o in zip((config, loaded), optimizers, strict=True))
    assert type(fresh) is type(again)
    assert optimizers[0].param_groups[0]["lr"] == optimizers[1].param_groups[0]["lr"]


def test_a_config_without_a_schedule_says_so(make_config: MakeConfig) -> None:
    """null in the document; asking for it is one clear error, and so are options without epochs."""
    config = make_config()
    assert config.to_json()["scheduler"] is None
    optimizer = config.optimizer(TinyNet())
    with pytest.raises(ConfigError, match="no schedule"):
        config.scheduler(optimizer)
    with pytest.raises(SettingsError, match="epochs="):
        config.scheduler(optimizer, pct_start=0.2)


@pytest.mark.parametrize("name", ["os.system", "torch.optim.lr_scheduler.LambdaLR", "torch.optim.SGD", "my.Schedule"])
def test_a_foreign_name_in_a_file_is_refused(make_config: MakeConfig, name: str) -> None:
    """Nothing outside the list is ever looked up."""
    document = make_config(of=task()).with_schedule(EPOCHS, kind="step").to_json()
    document["scheduler"]["name"] = name
    with pytest.raises(ConfigError, match="none that is built here"):
        TunedConfig.from_json(document)


def test_the_same_batch_answer_counts_its_own_steps(make_config: MakeConfig) -> None:
    """keep_batch() of a config with a schedule has the schedule, over the steps of the old batch."""
    for same in (None, make_config(Settings(batch_size=16, num_threads=1), of=task())):
        config = make_config(of=task(), same_batch=same).with_schedule(EPOCHS)
        assert config.schedule is not None
        assert config.schedule.kwargs["total_steps"] == 15
        for kept in (config.keep_batch(), TunedConfig.from_json(config.to_json()).keep_batch()):
            assert kept.schedule is not None
            assert kept.schedule.kwargs["total_steps"] == 57
            assert kept.schedule.kwargs["max_lr"] == pytest.approx(0.01)


def test_unknown_lengths_ask_for_the_steps(make_config: MakeConfig) -> None:
    """Of a stream without a length nobody here can count the steps."""
    config = make_config()
    config = dataclasses.replace(config, facts=dataclasses.replace(config.facts, samples=None))
    with pytest.raises(TaskError, match="updates_per_epoch="):
        config.with_schedule(EPOCHS)
    schedule = config.with_schedule(EPOCHS, updates_per_epoch=7).schedule
    assert schedule is not None
    assert schedule.kwargs["total_steps"] == 21


def test_what_changes_and_the_code_name_the_schedule(make_config: MakeConfig) -> None:
    """A sentence with steps and epochs; code that runs torch's class, its own warm-up left out."""
    config = make_config(of=task()).with_schedule(EPOCHS)
    assert any("OneCycleLR over 3 epochs of 5 optimizer steps (15 in all)" in line for line in changes(config))
    code = config.code()
    assert "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.04, total_steps=15" in code
    assert "scheduler.step()" in code
    assert "warmup" not in code
    assert len(code.splitlines()) <= 15
    assert "warmup" in make_config(of=task()).with_schedule(EPOCHS, kind="step").code()


class TestOwnScheduler:
    """``apply_to`` with a scheduler of the user's: 19 optimizer steps per epoch before, 5 now."""

    def applied(self, make_config: MakeConfig, make: Callable[[SGD], Any], **arguments: Any) -> Any:
        """The scheduler after ``apply_to``."""
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
        scheduler = make(optimizer)
        make_config(of=task()).apply_to(optimizer, scheduler, **arguments)
        return scheduler

    def test_step_counts_are_made_to_fit(self, make_config: MakeConfig, caplog: pytest.LogCaptureFixture) -> None:
        """The same epochs in fewer steps, each change logged, and the rates scaled."""
        with caplog.at_level(logging.INFO, "autotune"):
            scheduler = self.applied(make_config, lambda o: OneCycleLR(o, 0.01, total_steps=57, cycle_momentum=False))
        assert scheduler.total_steps == 15
        assert scheduler.optimizer.param_groups[0]["max_lr"] == pytest.approx(0.04)
        assert "total_steps 57 -> 15" in caplog.text
        assert self.applied(make_config, lambda o: CosineAnnealingLR(o, 57)).T_max == 15
        assert self.applied(make_config, lambda o: StepLR(o, 38)).step_size == 10

    def test_counts_of_epochs_are_not_taken_for_steps(self, make_config: MakeConfig) -> None:
        """A schedule that would be over within an epoch is asked about, before anything is changed."""
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
        scheduler = StepLR(optimizer, 10)
        with pytest.raises(TaskError, match='scheduler_interval="epoch"'):
            make_config(of=task()).apply_to(optimizer, scheduler)
        assert (scheduler.step_size, optimizer.param_groups[0]["lr"]) == (10, 0.01)
        make_config(of=task()).apply_to(optimizer, scheduler, scheduler_interval="epoch")
        assert (scheduler.step_size, optimizer.param_groups[0]["lr"]) == (10, pytest.approx(0.04))

    def test_a_lambda_is_said_and_stays(self, make_config: MakeConfig) -> None:
        """Nobody can look into it."""
        with pytest.warns(UserWarning, match=r"LambdaLR .* had 19 optimizer steps and has 5 now"):
            self.applied(make_config, lambda o: LambdaLR(o, lambda step: 0.9**step))

    def test_a_plateau_needs_nothing(self, make_config: MakeConfig) -> None:
        """It counts epochs anyway; only its floor is scaled."""
        assert self.applied(make_config, lambda o: ReduceLROnPlateau(o, patience=3)).patience == 3

    def test_an_unknown_interval_is_refused(self, make_config: MakeConfig) -> None:
        """By its name."""
        with pytest.raises(SettingsError, match="scheduler_interval='batch'"):
            self.applied(make_config, lambda o: StepLR(o, 38), scheduler_interval="batch")

    def test_the_same_steps_change_nothing(self, make_config: MakeConfig) -> None:
        """Also where the counts are short."""
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)
        scheduler = StepLR(optimizer, 2)
        make_config(Settings(batch_size=16, num_threads=1), of=task()).apply_to(optimizer, scheduler)
        assert scheduler.step_size == 2


def test_scaled_weight_decay_reaches_every_optimizer(make_config: MakeConfig) -> None:
    """The builder's, the user's own and the document's have the decay of the plan."""
    decaying = Task(
        TinyNet,
        images(),
        loss_fn=torch.nn.CrossEntropyLoss(),
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        device="cpu",
    )
    config = make_config(of=decaying)
    config = dataclasses.replace(
        config, learning_rate=dataclasses.replace(config.learning_rate, weight_decay_factor=2.0)
    )
    own = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.01, weight_decay=0.1)
    config.apply_to(own)
    document = config.to_json()
    loaded = TunedConfig.from_json(document)
    built = [config.optimizer(TinyNet()), loaded.optimizer(TinyNet()), own]
    assert [one.param_groups[0]["weight_decay"] for one in built] == [pytest.approx(0.2)] * 3
    assert document["optimizer"]["kwargs"]["weight_decay"] == pytest.approx(0.2)
    assert loaded.learning_rate.weight_decay_factor == 2.0
