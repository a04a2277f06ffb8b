"""A toy task, and tuned configs of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.config import Evidence, Speedup, TunedConfig
from autotune.hardware import Hardware
from autotune.learning_rate import LearningRatePlan, scale
from autotune.settings import Settings
from autotune.task import Facts, Task, resolve_loss

FINGERPRINT = "sha256:this-machine"
detect = Hardware.detect
"""The real one."""


class TinyNet(nn.Module):
    """Convolution, BatchNorm and a linear layer over images of (batch, 3, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.classify = nn.Linear(144, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of two classes."""
        return self.classify(self.norm(self.features(images)).flatten(1))


def sgd(params: Any) -> torch.optim.Optimizer:
    """The toy task's optimizer."""
    return torch.optim.SGD(params, lr=0.01, momentum=0.9)


def images(samples: int = 70) -> TensorDataset:
    """Labelled noise."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(samples, 3, 8, 8, generator=generator), torch.arange(samples) % 2)


def facts_of(task: Task) -> Facts:
    """What one batch of a task shows."""
    model, data = task.build_model(), task.data.resolve()
    batch = next(iter(DataLoader(data.dataset, batch_size=4, collate_fn=data.collate_fn)))
    loss = resolve_loss(loss_fn=task.loss_fn, training_step=task.training_step, model=model, batch=batch)
    return Facts.of(task, model, data, batch, loss, "cpu")


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detection gives a fixed fingerprint."""
    monkeypatch.setattr(Hardware, "detect", staticmethod(lambda: SimpleNamespace(fingerprint=FINGERPRINT)))


@pytest.fixture
def real_hardware() -> Hardware:
    """What this machine really is."""
    return detect()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Toy models gain nothing from threads and lose much to busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def task() -> Task:
    """An image task with everything spelled out."""
    return Task(TinyNet, images(), loss_fn=nn.CrossEntropyLoss(), optimizer=sgd, device="cpu", name="tiny")


@pytest.fixture
def make_config(task: Task) -> Callable[..., TunedConfig]:
    """Makes a config: ``make_config(settings, **fields)``."""

    def make(settings: Settings | None = None, *, of: Task = task, **fields: Any) -> TunedConfig:
        settings = settings or Settings(
            batch_size=16, gradient_accumulation_steps=4, optimizer_implementation="foreach"
        )
        baseline = fields.pop("baseline", Settings(batch_size=16))
        facts = facts_of(of)
        return TunedConfig(
            settings=settings,
            baseline=baseline,
            facts=facts,
            **{
                "learning_rate": _plan(baseline, settings, facts),
                "hardware": {"fingerprint": FINGERPRINT},
                "evidence": evidence(),
                "task": of,
                **fields,
            },
        )

    return make


def _plan(baseline: Settings, settings: Settings, facts: Facts) -> LearningRatePlan:
    return scale(
        base_batch_size=baseline.effective_batch_size,
        effective_batch_size=settings.effective_batch_size,
        rule="linear",
        optimizer_name=facts.optimizer_name,
        steps_per_epoch=2,
    )


def evidence(**changes: Any) -> Evidence:
    """The evidence of a race that was won."""
    fields: dict[str, Any] = {
        "kept_baseline": False,
        "reason": "won the race",
        "speedup": Speedup(median=1.74, low=1.61, high=1.9, rounds=6),
        "speedup_same_batch": Speedup(median=1.2, low=1.1, high=1.3, rounds=6),
        "samples_per_s": 671.0,
        "baseline_samples_per_s": 385.5,
        "upper_bound_samples_per_s": 760.0,
        "largest_batch": 64,
        "data_wait_share": 0.25,
        "dropped_knobs": {"compile_mode": "no compiler"},
        "warnings": ("busy machine",),
        "spent_s": {"search": 40.0},
        "trials": 9,
        "created": "2025-01-02T03:04:05+00:00",
    }
    return Evidence(**{**fields, **changes})
