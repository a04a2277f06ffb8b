"""WebDataset streams out of a tar file written here."""

from __future__ import annotations

import gc
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from torch import nn
from torch.utils.data import DataLoader

from autotune.errors import TaskError
from autotune.task import Task

# WebDataset leaves the file of a stream that is not read to its end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Those files are closed within the test that left them."""
    yield
    gc.collect()


@pytest.fixture
def shards(tmp_path: Path) -> str:
    """Two tar files of 16 samples each: an array and a class."""
    for shard in range(2):
        with tarfile.open(tmp_path / f"train-{shard}.tar", "w") as tar:
            for row in range(16):
                array = io.BytesIO()
                np.save(array, np.full(4, row, dtype=np.float32))
                _add(tar, f"{shard}{row:03d}.x.npy", array.getvalue())
                _add(tar, f"{shard}{row:03d}.y.cls", str(row % 2).encode())
    return str(tmp_path / "train-{0..1}.tar")


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def stream(shards: str) -> webdataset.WebDataset:
    """Shuffled samples as pairs."""
    return webdataset.WebDataset(shards, shardshuffle=False).shuffle(8).decode().to_tuple("x.npy", "y.cls")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_stream_is_batched_by_the_loader(desk: Any, shards: str) -> None:
    """An iterable dataset of unknown length; the batch size is tried as elsewhere, also with two workers."""
    put = desk(net(), DataLoader(stream(shards), batch_size=4), loss_fn=nn.CrossEntropyLoss())
    assert (put.facts.iterable, put.facts.samples, put.facts.batches_kept) == (True, None, None)
    assert put.measure(batch_size=8).largest_batch_rows == 8
    assert put.measure(batch_size=8, num_workers=2).largest_batch_rows == 8


def test_a_stream_that_makes_its_own_batches_keeps_them(desk: Any, shards: str) -> None:
    """``.batched(4)`` with ``batch_size=None``, as WebDataset recommends: its rows are counted, not chosen."""
    put = desk(net(), DataLoader(stream(shards).batched(4), batch_size=None), loss_fn=nn.CrossEntropyLoss())
    assert put.facts.batches_kept == "batch_size=None: the dataset yields whole batches"
    assert put.facts.samples is None
    assert put.measure().largest_batch_rows == 4
    assert put.measure("loader").samples_per_s > 0


def test_a_stream_crosses_into_another_process(desk: Any, crossed: Callable[[Task], Task], shards: str) -> None:
    """A pipeline is made of plain parts and reads its files anew there."""
    task = Task(net(), stream(shards), loss_fn=nn.CrossEntropyLoss(), device="cpu")
    assert desk(crossed(task)).measure(batch_size=8).largest_batch_rows == 8


def test_a_loader_of_the_library_says_what_to_pass_instead(shards: str) -> None:
    """``WebLoader`` is a stream around a DataLoader, whose batches must not be batched again."""
    loader = webdataset.WebLoader(stream(shards).batched(4), batch_size=None, num_workers=0)
    with pytest.raises(TaskError, match=r"WebLoader\) is a loader of whole batches.*batch_size=None"):
        Task(net(), loader, loss_fn=nn.CrossEntropyLoss())


def test_shards_in_a_factory_are_opened_where_they_are_read(desk: Any, shards: str) -> None:
    """A function that makes the stream is as good as the stream."""
    put = desk(net(), lambda: stream(shards), loss_fn=nn.CrossEntropyLoss())
    assert put.facts.iterable
    assert put.facts.batch_signature == "list(float32[*,4], int64[*])"
    assert not torch.multiprocessing.active_children()
