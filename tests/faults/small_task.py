"""A small network that may refuse some batches, its data, and the search for its largest batch in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import largest_batch
from autotune.batch_size import LargestBatch
from autotune.hardware import Hardware, Limits
from autotune.measurement import Probe
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench

HOST = Hardware.detect(device="cpu")


class Net(nn.Module):
    """Eight features, two classes; calls ``refuse(self, x)`` first and counts the rows of every forward pass."""

    def __init__(self, refuse: Callable[[Any, torch.Tensor], object] = lambda net, x: None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.refuse = refuse
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        self.refuse(self, x)
        return self.layers(x)


def full_above(limit: int) -> Callable[[Any, torch.Tensor], None]:
    """Out of memory above so many rows."""

    def refuse(_: Any, x: torch.Tensor) -> None:
        if len(x) > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    return refuse


def rows(count: int = 4096, features: int = 8) -> TensorDataset:
    """Noise with two classes."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, features, generator=generator), torch.arange(count) % 2)


def largest(model: Any, dataset: Any = None, **arguments: Any) -> LargestBatch:
    """``largest_batch`` without a child and without a margin: milliseconds a size."""
    usual = {"loss_fn": nn.functional.cross_entropy, "device": "cpu", "isolate": False, "progress": False}
    return largest_batch(model, rows() if dataset is None else dataset, **{**usual, "memory_margin": 0.0, **arguments})


def bench(model: Any, dataset: Any = None, **arguments: Any) -> Bench:
    """A bench in this process; to be closed."""
    task = Task(model, rows() if dataset is None else dataset, **{"loss_fn": nn.CrossEntropyLoss(), **arguments})
    made = Bench(task, HOST, Limits.of(HOST))
    made.describe()
    return made


def probe(kind: Any = "joint", *, window_s: float = 0.05, **knobs: Any) -> Probe:
    """A short probe of ``Settings().replace(**knobs)``."""
    return Probe(kind=kind, settings=Settings().replace(**knobs), window_s=window_s)
