"""Tuned configs to export: one that asks for nothing special, one that asks for all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.config import Evidence, TunedConfig
from autotune.learning_rate import LearningRatePlan
from autotune.settings import Settings
from autotune.task import Facts, Task, resolve_loss

MakeConfig = Callable[..., TunedConfig]

ALL_AT_ONCE = Settings(
    batch_size=8,
    gradient_accumulation_steps=4,
    num_workers=2,
    prefetch_factor=4,
    persistent_workers=True,
    pin_memory=True,
    multiprocessing_context="forkserver",
    precision="bf16-mixed",
    channels_last=True,
    compile_mode="default",
    compile_scope="blocks",
    optimizer_implementation="fused",
    cudnn_benchmark=True,
    num_threads=2,
    activation_checkpointing=True,
    length_grouped=True,
)
"""Every knob is set."""


class Block(nn.Module):
    """A convolution that keeps the shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images as large as before."""
        return torch.relu(self.conv(images))


class TinyNet(nn.Module):
    """Two equal blocks and a linear layer over images of (batch, 3, 4, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.classify = nn.Linear(48, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of two classes."""
        return self.classify(self.blocks(images).flatten(1))


def adamw(params: Any) -> torch.optim.Optimizer:
    """The toy task's optimizer, nothing of it as torch has it."""
    return torch.optim.AdamW(params, lr=0.002, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.05)


def pictures(samples: int = 70) -> TensorDataset:
    """Labelled noise."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(samples, 3, 4, 4, generator=generator), torch.arange(samples) % 2)


@pytest.fixture
def make_config() -> MakeConfig:
    """Makes a config: ``make_config(settings, **fields)``; ``optimizer=`` and ``data=`` are of its task."""

    def make(settings: Settings | None = None, **fields: Any) -> TunedConfig:
        optimizer, data = fields.pop("optimizer", adamw), fields.pop("data", None)
        data = pictures() if data is None else data
        task = Task(TinyNet, data, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer, device="cpu", name="tiny")
        factor, warmup = fields.pop("lr_factor", 2.0), fields.pop("warmup_steps", 0)
        plan = LearningRatePlan(factor=factor, rule="linear", capped=False, warmup_steps=warmup, notes=())
        return TunedConfig(
            settings=settings or Settings(batch_size=16),
            facts=facts_of(task),
            **{
                "baseline": Settings(batch_size=8),
                "learning_rate": plan,
                "hardware": {"fingerprint": "sha256:here"},
                "evidence": evidence(),
                "task": task,
                **fields,
            },
        )

    return make


@pytest.fixture
def everything(make_config: MakeConfig) -> TunedConfig:
    """A config with every knob set, clipping and warm-up."""
    return make_config(ALL_AT_ONCE, max_grad_norm=0.5, warmup_steps=3)


def facts_of(task: Task) -> Facts:
    """What one batch of a task shows."""
    model, data = task.build_model(), task.data.resolve()
    batch = next(iter(DataLoader(data.dataset, batch_size=4, collate_fn=data.collate_fn)))
    loss = resolve_loss(loss_fn=task.loss_fn, training_step=task.training_step, model=model, batch=batch)
    return Facts.of(task, model, data, batch, loss, "cpu")


def evidence() -> Evidence:
    """The evidence of a race that was won."""
    return Evidence(
        kept_baseline=False,
        reason="won the race",
        speedup=None,
        speedup_same_batch=None,
        samples_per_s=671.0,
        baseline_samples_per_s=385.5,
        upper_bound_samples_per_s=760.0,
        largest_batch=64,
        data_wait_share=0.25,
        dropped_knobs={},
        warnings=(),
        spent_s={"search": 40.0},
        trials=9,
        created="2025-01-02T03:04:05+00:00",
    )
