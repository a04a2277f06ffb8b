"""The promises of a whole call: nothing of the caller's changes, its words are kept, and what it returns trains."""

from __future__ import annotations

import copy
import dataclasses
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler, default_collate

from autotune import Space, Task, TunedConfig, autotune
from autotune.errors import TaskError
from autotune.planner import CPU
from autotune.report.progress import Progress
from tests.api_world import (
    FEATURES,
    Rows,
    check_proven,
    nothing_left_behind,
    places_of,
    sgd,
    state_of,
    trials_of,
    unusual_switches,
)

ROWS = 640
BATCH = 16


class Images(Dataset):
    """Small images, brighter where the label is 1; each look at one draws from every global generator."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        label = index % 2
        noise = torch.rand(3, 8, 8) + random.random() + float(np.random.rand())
        return {"image": noise + 4 * label, "label": torch.tensor(label)}


def as_pairs(samples: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A collate function of the user's own."""
    batch = default_collate(samples)
    return batch["image"], batch["label"]


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(4 * 36, 2)
        )


def in_mid_training() -> SimpleNamespace:
    """A user's objects between two steps: gradients, moments, a schedule, modes of their own, used generators."""
    torch.manual_seed(5)
    model = Net()
    model[0].bias.requires_grad_(False)
    weighing, shuffling = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    sampler = WeightedRandomSampler([1.0 + index % 2 for index in range(ROWS)], ROWS, generator=weighing)
    loader = DataLoader(Images(), batch_size=BATCH, sampler=sampler, collate_fn=as_pairs, generator=shuffling)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam([{"params": trained[:2]}, {"params": trained[2:], "lr": 2e-3}], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for _, (images, labels) in zip(range(2), loader, strict=False):
        optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        optimizer.step()
        scheduler.step()
    model[1].eval()
    generators = [weighing, shuffling]
    return SimpleNamespace(
        model=model, loader=loader, optimizer=optimizer, scheduler=scheduler, loss_fn=loss_fn, generators=generators
    )


def state(mine: SimpleNamespace) -> dict[str, Any]:
    return state_of(mine.model, mine.optimizer, mine.scheduler, mine.generators)


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what differs (the values are too long to read)."""
    assert before.keys() == after.keys()
    return [name for name in before if before[name] != after[name]]


def call(mine: SimpleNamespace, **options: Any) -> TunedConfig:
    return autotune(
        mine.model,
        mine.loader,
        loss_fn=mine.loss_fn,
        optimizer=mine.optimizer,
        device="cpu",
        progress=False,
        **options,
    )


def task_of(mine: SimpleNamespace) -> Task:
    return Task(mine.model, mine.loader, loss_fn=mine.loss_fn, optimizer=mine.optimizer, device="cpu")


def shorten_looks(patch: pytest.MonkeyPatch, *, race_lap_s: float) -> None:
    """For tests of what is tried rather than of how fast it is: a few seconds hold a search and a race."""
    pace = dataclasses.replace(CPU, window_s=0.2, baseline_window_s=0.4, race_lap_s=race_lap_s, idle_moves=2)
    patch.setattr("autotune.api.story.CPU", pace)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_looks(monkeypatch, race_lap_s=0.2)


@pytest.fixture(scope="module")
def isolated() -> SimpleNamespace:
    """One real call from the middle of a training, and the caller's state around it."""
    storage = optuna.storages.InMemoryStorage()
    with nothing_left_behind(), unusual_switches(), pytest.MonkeyPatch.context() as patch:
        shorten_looks(patch, race_lap_s=0.8)
        mine = in_mid_training()
        before, places = state(mine), places_of(mine.model, mine.optimizer)
        tuned = call(mine, time_budget_s=16, storage=storage)
        after, places_after = state(mine), places_of(mine.model, mine.optimizer)
    return SimpleNamespace(
        tuned=tuned,
        mine=mine,
        before=before,
        after=after,
        places=places,
        places_after=places_after,
        trials=trials_of(storage),
    )


@pytest.mark.slow
def test_isolated_call_changes_nothing(isolated: SimpleNamespace) -> None:
    """Tensors, moments, schedule, modes, random states and switches are what they were; nothing is left behind.

    Reports: Lightning-AI/pytorch-lightning#6675, Lightning-AI/pytorch-lightning#15603, fastai/fastai#3185,
    ultralytics/ultralytics#25024.
    """
    assert changes(isolated.before, isolated.after) == []
    assert isolated.places_after == isolated.places


@pytest.mark.slow
def test_answer_was_proven(isolated: SimpleNamespace) -> None:
    """The settings are the caller's own, or they won a race that the study holds."""
    check_proven(isolated.tuned, isolated.trials)
    assert isolated.tuned.baseline.batch_size == BATCH


@pytest.mark.slow
def test_loader_keeps_what_the_caller_chose(isolated: SimpleNamespace) -> None:
    """Sampler, collate function and generator of the caller's DataLoader are those of the tuned one.

    Report: Lightning-AI/pytorch-lightning#14212.
    """
    loader, own = isolated.tuned.dataloader(), isolated.mine.loader
    assert type(loader) is DataLoader
    assert loader.dataset is own.dataset
    assert loader.sampler is own.sampler
    assert loader.collate_fn is as_pairs
    assert loader.generator is own.generator
    assert loader.batch_size == isolated.tuned.settings.batch_size


def train(tuned: TunedConfig, model: nn.Module, epochs: int) -> tuple[list[float], torch.optim.Optimizer]:
    """Mean loss of each epoch, by the recipe of the README."""
    with tuned.switches():
        model = tuned.prepare(model)
        loader, optimizer = tuned.dataloader(), tuned.optimizer(model)
        step = tuned.train_step(model, optimizer)
        means = []
        for _ in range(epochs):
            losses = [step(batch) for batch in loader]
            step.flush()
            means.append(float(torch.stack(losses).mean()))
    return means, optimizer


@pytest.mark.slow
@pytest.mark.filterwarnings("default::autotune.build.SlowTrainingWarning")  # true on a busy machine, and no failure
def test_emitted_recipe_trains_on(isolated: SimpleNamespace) -> None:
    """Loader, optimizer and step from one call lower the loss of the caller's own model."""
    model = copy.deepcopy(isolated.mine.model).train()
    keys = list(model.state_dict())
    means, optimizer = train(isolated.tuned, model, epochs=6)
    assert means[-1] < 0.7 * means[0]
    assert list(model.state_dict()) == keys
    factor = isolated.tuned.learning_rate.factor
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3 * factor, 2e-3 * factor])


@pytest.mark.slow
@pytest.mark.filterwarnings("default::autotune.build.SlowTrainingWarning")  # true on a busy machine, and no failure
def test_saved_config_trains_with_its_task(isolated: SimpleNamespace, tmp_path: Any) -> None:
    """A config read back together with its task says the same and builds the same."""
    tuned = isolated.tuned
    tuned.save(tmp_path / "tuned.json")
    loaded = TunedConfig.load(tmp_path / "tuned.json", task=task_of(isolated.mine))
    assert loaded.to_json() == tuned.to_json()
    assert loaded.settings == tuned.settings
    assert loaded.dataloader().sampler is isolated.mine.loader.sampler
    means, _ = train(loaded, copy.deepcopy(isolated.mine.model).train(), epochs=2)
    assert means[-1] < means[0]


def test_call_in_this_process_changes_nothing(hasty: None) -> None:
    """Without isolation, the same holds after training the caller's own model, down to each tensor's memory.

    Reports: Lightning-AI/pytorch-lightning#6675, fastai/fastai#3185.
    """
    with nothing_left_behind(), unusual_switches():
        mine = in_mid_training()
        before, places = state(mine), places_of(mine.model, mine.optimizer)
        storage = optuna.storages.InMemoryStorage()
        tuned = call(mine, time_budget_s=12, isolate=False, storage=storage)
        after, places_after = state(mine), places_of(mine.model, mine.optimizer)
    assert changes(before, after) == []
    assert places_after == places
    check_proven(tuned, trials_of(storage))
    assert len(trials_of(storage)) > 1
    assert any("this process" in warning for warning in tuned.evidence.warnings)


def test_failed_call_in_this_process_changes_nothing() -> None:
    """A task that turns out not to train is told, and everything is as before.

    Report: Lightning-AI/pytorch-lightning#3260.
    """
    with nothing_left_behind(), unusual_switches():
        mine = in_mid_training()
        mine.loss_fn = nn.NLLLoss(weight=torch.ones(7))  # for seven classes; the model has two
        before, places = state(mine), places_of(mine.model, mine.optimizer)
        with pytest.raises(TaskError, match="weight tensor should be defined"):
            call(mine, time_budget_s=5, isolate=False)
        assert changes(before, state(mine)) == []
        assert places_of(mine.model, mine.optimizer) == places


@pytest.fixture
def ctrl_c() -> Iterator[Any]:
    """Progress callback that sends SIGINT to this process, a moment after the first trial was told of."""
    timers: list[threading.Timer] = []

    def watch(event: Progress) -> None:
        if event.phase == "search" and not timers:
            timers.append(threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)))
            timers[0].start()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield watch
    signal.signal(signal.SIGINT, before)
    for timer in timers:
        timer.cancel()
        timer.join()


# In this process the press may strike while the garbage collector calls back, where python drops it aloud.
@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
@pytest.mark.parametrize("isolate", [True, False])
def test_ctrl_c_returns_the_baseline(hasty: None, ctrl_c: Any, isolate: bool) -> None:
    """Interrupted after the baseline was measured, the call ends at once and returns it, saying why."""
    began = time.monotonic()
    with nothing_left_behind():
        mine = in_mid_training()
        before = state(mine)
        tuned = autotune(
            mine.model,
            mine.loader,
            loss_fn=mine.loss_fn,
            optimizer=mine.optimizer,
            device="cpu",
            progress=ctrl_c,
            time_budget_s=600,
            isolate=isolate,
            # In this process it may strike while torch receives a worker's batch, which loses the batch's descriptor.
            space=None if isolate else Space(num_workers=[0]),
        )
        assert changes(before, state(mine)) == []
    assert time.monotonic() - began < 110  # a search of ten minutes was asked for
    assert tuned.settings == tuned.baseline
    assert tuned.evidence.kept_baseline
    assert "interrupted" in tuned.evidence.reason
    assert tuned.evidence.samples_per_s is not None
    assert next(iter(tuned.dataloader()))[0].shape == (BATCH, 3, 8, 8)


@pytest.mark.parametrize("isolate", [pytest.param(True, marks=pytest.mark.slow), False])
def test_baseline_that_cannot_train_keeps_its_message(isolate: bool) -> None:
    """A shape error in the caller's own model is a TaskError with torch's words."""
    with nothing_left_behind(), pytest.raises(TaskError, match="mat1 and mat2 shapes cannot be multiplied"):
        autotune(
            nn.Linear(FEATURES + 1, 2),
            Rows(),
            loss_fn=nn.CrossEntropyLoss(),
            optimizer=sgd,
            device="cpu",
            time_budget_s=5,
            isolate=isolate,
        )


def test_loss_that_cannot_be_inferred_names_both_ways_out() -> None:
    """Where output and target fit no usual loss, the error names loss_fn and training_step."""
    data = TensorDataset(torch.randn(64, FEATURES), torch.randn(64, 3, 3, 3))
    with pytest.raises(TaskError, match="loss_fn") as raised:
        autotune(nn.Linear(FEATURES, 2), data, device="cpu", time_budget_s=5, isolate=False)
    assert "training_step" in str(raised.value)


def test_inferred_loss_measures_but_does_not_train(hasty: None) -> None:
    """A guessed loss is said and refused by train_step(); with loss_fn it trains."""
    tuned = autotune(nn.Linear(FEATURES, 2), Rows(), device="cpu", time_budget_s=3, isolate=False)
    model = tuned.prepare(nn.Linear(FEATURES, 2))
    optimizer = tuned.optimizer(model)
    assert any("loss was inferred for measuring only" in warning for warning in tuned.evidence.warnings)
    with pytest.raises(TaskError, match="loss_fn"):
        tuned.train_step(model, optimizer)
    step = tuned.train_step(model, optimizer, loss_fn=nn.CrossEntropyLoss())
    assert float(step(next(iter(tuned.dataloader())))) > 0


@pytest.mark.slow
def test_limits_hold_and_a_second_call_continues_the_study(hasty: None, tmp_path: Any) -> None:
    """No trial leaves the locked effective batch or the caller's space; the next call adds to the study in the file."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    limits: dict[str, Any] = {"space": Space(num_workers=[0], precision=["fp32"]), "study_name": "mine"}
    kept = {"effective_batch_size": "keep", "max_batch_size": 24, "time_budget_s": 20}  # 48 has to be accumulated
    locked = {"effective_batch_size": 48, "time_budget_s": 6, "isolate": False}
    sizes = []
    for batch_size, options in ((48, kept), (12, locked)):
        loader = DataLoader(Rows(), batch_size=batch_size, shuffle=True)
        arguments: dict[str, Any] = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": sgd, "device": "cpu"}
        tuned = autotune(nn.Linear(FEATURES, 2), loader, storage=storage, **arguments, **limits, **options)
        assert tuned.settings.effective_batch_size == tuned.baseline.effective_batch_size == 48
        assert tuned.keep_batch() is tuned
        assert tuned.learning_rate.factor == 48 / batch_size
        trials = trials_of(storage)
        sizes.append(len(trials))
        check_proven(tuned, trials)
    assert 1 <= sizes[0] < sizes[1]
    for params in (trial.params for trial in trials):
        assert params["batch_size"] * params["gradient_accumulation_steps"] == 48
        assert (params["num_workers"], params["precision"]) == (0, "fp32")
    assert max(trial.params["batch_size"] for trial in trials[: sizes[0]]) == 24
