"""A task for the real bench that misbehaves as a file tells it: in the model, the data, the loader's workers."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

IN_MODEL = ("fails", "sleeps", "loss is not finite", "spoils the weights", "changes torch's flags")
IN_DATA = ("sample fails", "sample has another shape", "worker exits")
DEADLY = (
    "exits",
    "segfaults",
    "hangs",
    "runs out of memory",
    "allocates too much at once",
    "worker is killed",
    "worker hangs",
    "worker allocates wildly",
)

FATES = {
    "healthy": {"measured"},
    "sleeps": {"measured"},
    "changes torch's flags": {"measured"},
    "spoils the weights": {"rejected"},
    "fails": {"rejected"},
    "loss is not finite": {"rejected"},
    "sample fails": {"rejected"},
    "sample has another shape": {"rejected"},
    "worker exits": {"rejected"},
    "exits": {"crashed"},
    "segfaults": {"crashed"},
    "hangs": {"timed out"},
    "worker hangs": {"timed out"},
    "runs out of memory": {"out of memory"},
    "allocates too much at once": {"out of memory"},
    "worker is killed": {"out of memory"},  # nothing but the kernel's memory killer commonly does it
    "worker allocates wildly": {"out of memory"},
}


class Net(nn.Module):
    """Two layers; looks into the file at each forward pass."""

    def __init__(self, order: Path) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        way = self.order.read_text()
        act = _IN_STEP.get(way)
        if act is not None:
            act(self)
        out = self.layers(x)
        return out * float("nan") if way == "loss is not finite" else out


class Rows(Dataset[Any]):
    """Rows that depend on their index alone; looks into the file at each read."""

    def __init__(self, order: Path) -> None:
        self.order = order

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        way = self.order.read_text()
        if way == "sample fails":
            raise KeyError("made on purpose")
        if get_worker_info() is not None and way in _IN_WORKER:
            _IN_WORKER[way]()
        width = 4 + index % 2 if way == "sample has another shape" else 4
        return torch.linspace(0, 1, width) * index / 256, index % 2


def _fail(_: Net) -> None:
    raise RuntimeError("made on purpose")


def _spoil(net: Net) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(float("nan"))


def _change_flags(_: Net) -> None:
    torch.manual_seed(99)
    torch.backends.cudnn.benchmark = True


def _out_of_memory(_: Net) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def _allocate(_: Net) -> None:
    torch.empty(2**50)


def _allocate_slowly() -> None:
    held = []
    while True:
        held.append(b"x" * 2**25)
        time.sleep(0.005)


_IN_STEP: dict[str, Callable[[Net], object]] = {
    "fails": _fail,
    "sleeps": lambda net: time.sleep(0.01),
    "spoils the weights": _spoil,
    "changes torch's flags": _change_flags,
    "exits": lambda net: os._exit(17),
    "segfaults": lambda net: ctypes.string_at(0),
    "hangs": lambda net: time.sleep(3600),
    "runs out of memory": _out_of_memory,
    "allocates too much at once": _allocate,
}
_IN_WORKER: dict[str, Callable[[], object]] = {
    "worker exits": lambda: os._exit(3),
    "worker is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "worker hangs": lambda: time.sleep(3600),
    "worker allocates wildly": _allocate_slowly,
}
