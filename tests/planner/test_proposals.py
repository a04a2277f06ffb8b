"""Whatever the plan proposes can be built, yields a batch and trains."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune.build import TrainStep, build_loader, build_optimizer, prepare_model, switches
from autotune.hardware import Accelerator, Hardware, Limits
from autotune.planner import CPU, GPU, Plan
from autotune.settings import DOMAINS, Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.study import Study
from autotune.task import Facts, ResolvedLoss, Task, first_batch, resolve_loss
from tests.planner.fake_machine import CARD, FakeMachine

# Neither varied by the plan: torch's own default is right, or the value follows from another knob.
_FOLLOWING = {"gradient_accumulation_steps", "prefetch_factor", "persistent_workers"}
_NUMBERS = {"batch_size", "num_workers", "num_threads"}


class Block(nn.Module):
    """A residual block; two of them make repeated blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


def _images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))


def _volumes() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 2, 2), nn.AdaptiveAvgPool3d(1), nn.Flatten())


def _rows() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))


class Told(Dataset[Any]):
    """A dataset that is told of each epoch."""

    def __init__(self) -> None:
        self.images, self.labels = torch.randn(320, 3, 8, 8), torch.arange(320) % 2

    def set_epoch(self, epoch: int) -> None:
        """What workers kept between epochs would not hear."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


def _data() -> TensorDataset:
    told = Told()
    return TensorDataset(told.images, told.labels)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _rmsprop(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, lr=0.001)


_TASKS: dict[str, Any] = {
    "images": lambda: Task(_images(), _data(), loss_fn=nn.CrossEntropyLoss()),
    "volumes": lambda: Task(_volumes(), _data(), loss_fn=nn.CrossEntropyLoss(), optimizer=_momentum),
    "rows": lambda: Task(_rows(), _data(), loss_fn=nn.CrossEntropyLoss(), optimizer=_rmsprop, base_batch_size=7),
    "told of epochs": lambda: Task(_images(), Told(), loss_fn=nn.CrossEntropyLoss()),
    "own loader": lambda: Task(
        _images(),
        DataLoader(_data(), batch_size=10, num_workers=1, prefetch_factor=3, drop_last=True),
        loss_fn=nn.CrossEntropyLoss(),
    ),
    "float64": lambda: Task(_rows().double(), DataLoader(_doubles(), batch_size=5), loss_fn=nn.CrossEntropyLoss()),
}
_RULES = [BatchRules(), BatchRules(effective_batch_size=12, max_batch_size=6), BatchRules(max_effective_batch_size=48)]
_SPACES = [
    Space(),
    Space(num_workers=[0, 3], precision=["fp32"]),
    Space(persistent_workers=[False], prefetch_factor=[5], batch_size=[8, 24], num_threads=[1]),
]


def _doubles() -> TensorDataset:
    images, labels = _data().tensors
    return TensorDataset(images.double(), labels)


def _described(name: str) -> tuple[Task, Facts, ResolvedLoss]:
    task = _TASKS[name]()
    model, data = task.build_model(), task.data.resolve()
    batch = first_batch(data, rows=4)
    loss = resolve_loss(loss_fn=task.loss_fn, training_step=None, model=model, batch=batch)
    return task, Facts.of(task, model, data, batch, loss, "cpu", rows=4), loss


def _proposals(
    facts: Facts, *, accelerator: Accelerator | None, rules: BatchRules, space: Space, seed: int
) -> set[Any]:
    """Every (kind, settings) that a plan asks of a machine of random speed, and the candidates themselves."""
    detected = dataclasses.replace(
        Hardware.detect(device="cpu"), cores=4, cpu_bf16_native=True, has_compiler=True, accelerator=accelerator
    )
    candidates = Candidates.of(facts, detected, Limits.of(detected), rules, space)
    chance = random.Random(seed)
    rates: dict[Settings, float] = {}
    machine = FakeMachine(
        lambda settings: rates.setdefault(settings, chance.uniform(50.0, 500.0)), trial_s=1.0, wait_share=0.2
    )
    Plan(
        candidates=candidates,
        hardware=detected,
        pace=GPU if accelerator else CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=300.0,
        started_s=0.0,
    ).search()
    return {(probe.kind, probe.settings) for probe in machine.probes}


@pytest.fixture
def compiled_without_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compilation is set up, not carried out: a test of settings, not of the code generator."""
    monkeypatch.setattr(nn.Module, "compile", lambda module, mode=None: torch.compile(module, mode=mode))
    return


def _trains(task: Task, facts: Facts, loss: ResolvedLoss, settings: Settings) -> None:
    loader = build_loader(task.data, settings, has_batch_norm=facts.has_batch_norm, seed=0)
    model = prepare_model(task.build_model(), settings, "cpu")
    with switches(settings):
        step = TrainStep(
            model, build_optimizer(task.optimizer, model, settings), loss=loss, settings=settings, device="cpu"
        )
        assert torch.isfinite(step(next(iter(loader))))


def _constructed(task: Task, facts: Facts, settings: Settings) -> None:
    with warnings.catch_warnings():  # the machine asked about has more cores, and a device to pin for
        warnings.filterwarnings("ignore", "This DataLoader will create|'pin_memory' argument")
        build_loader(task.data, settings, has_batch_norm=facts.has_batch_norm)


@pytest.mark.parametrize("rules", _RULES, ids=["free", "locked", "bounded"])
@pytest.mark.parametrize("name", list(_TASKS))
def test_every_proposal_on_a_cpu_builds_yields_a_batch_and_trains(
    name: str, rules: BatchRules, compiled_without_code: None
) -> None:
    """Nothing that torch refuses is asked for, whatever turns out to be fast."""
    task, facts, loss = _described(name)
    for seed, space in enumerate(_SPACES):
        for kind, settings in _proposals(facts, accelerator=None, rules=rules, space=space, seed=seed):
            if kind == "joint":
                assert settings.pin_memory is False
                assert settings.cudnn_benchmark is False
                # Starting workers for each would take the time of the whole suite; none differs by it but in speed.
                _trains(task, facts, loss, settings.replace(num_workers=0))
                _constructed(task, facts, settings)


@pytest.mark.parametrize("rules", _RULES, ids=["free", "locked", "bounded"])
@pytest.mark.parametrize("name", list(_TASKS))
def test_every_proposal_on_an_accelerator_builds_a_loader(name: str, rules: BatchRules) -> None:
    """The loader's own checks accept it; the rest needs the device."""
    task, facts, _ = _described(name)
    for seed, space in enumerate(_SPACES):
        for kind, settings in _proposals(facts, accelerator=CARD, rules=rules, space=space, seed=seed):
            _constructed(task, facts, settings)
            assert kind != "joint" or not (settings.channels_last and name in ("volumes", "rows"))


def test_workers_that_stay_are_proposed_unless_the_dataset_is_told_of_epochs() -> None:
    """set_epoch() on the dataset never reaches a worker that was started before."""
    for name, expected in (("images", {True}), ("told of epochs", {False})):
        _, facts, _ = _described(name)
        asked = _proposals(facts, accelerator=None, rules=BatchRules(), space=Space(), seed=0)
        assert {settings.persistent_workers for _, settings in asked if settings.num_workers} == expected


def test_the_callers_values_are_aimed_at_not_passed_over() -> None:
    """Workers [0, 3] on four cores: 3 is tried although the plan's own numbers are 4, 2 and 1."""
    _, facts, _ = _described("images")
    asked = _proposals(
        facts, accelerator=None, rules=BatchRules(), space=Space(num_workers=[0, 3], batch_size=[100]), seed=0
    )
    joint = [settings for kind, settings in asked if kind == "joint"]
    assert {settings.num_workers for settings in joint} == {0, 3}
    assert {settings.batch_size for settings in joint} <= {32, 100}


@pytest.mark.parametrize("accelerator", [None, CARD], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", list(_TASKS))
def test_every_knob_is_tried_or_follows_or_is_dropped_with_a_reason(name: str, accelerator: Accelerator | None) -> None:
    """No knob is passed over in silence."""
    _, facts, _ = _described(name)
    found = dataclasses.replace(Hardware.detect(device="cpu"), cores=4, has_compiler=True, accelerator=accelerator)
    candidates = Candidates.of(facts, found, Limits.of(found), BatchRules(), Space())
    rescue = {"activation_checkpointing"}  # only where the batch does not fit
    for knob in DOMAINS:
        valued = bool(candidates.values.get(knob)) or knob in _NUMBERS | _FOLLOWING | rescue
        assert valued or candidates.dropped.get(knob), knob
