"""What a dataset holds that workers must not share."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import random
import socket
import sqlite3
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from autotune.task.worker_state import shared_states


class Holder(Dataset[Any]):
    """Three samples and whatever else."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2), index


def found(value: Any) -> list[tuple[str, str]]:
    return [(state.where, state.kind) for state in shared_states(dataset=value)]


@pytest.mark.parametrize(
    "generator",
    [
        np.random.default_rng(0),
        np.random.RandomState(0),
        np.random.PCG64(0),
        random.Random(0),
        torch.Generator(),
    ],
)
def test_every_kind_of_random_generator_is_found(generator: Any) -> None:
    """By the attribute's name."""
    assert found(Holder(rng=generator)) == [("dataset.rng", "generator")]


def test_generators_are_found_through_wrappers() -> None:
    """Subset, ConcatDataset, lists of transforms, modules, partials and closures."""
    rng = np.random.default_rng(0)
    assert found(Subset(Holder(rng=rng), [0])) == [("dataset.dataset.rng", "generator")]
    assert found(ConcatDataset([Holder(), Holder(rng=rng)])) == [("dataset.datasets[1].rng", "generator")]
    assert found(Holder(transform=Holder(transforms=[Holder(), Holder(g=rng)]))) == [
        ("dataset.transform.transforms[1].g", "generator")
    ]
    assert found(Holder(transform=functools.partial(print, rng=rng))) == [("dataset.transform(rng)", "generator")]
    assert found(Holder(transform=lambda x: x + rng.random())) == [("dataset.transform.rng", "generator")]
    layers = nn.Sequential(nn.Identity())
    layers[0].rng = rng
    assert found(Holder(layers=layers)) == [("dataset.layers._modules['0'].rng", "generator")]


def test_open_files_and_connections_are_found(tmp_path: Path) -> None:
    """Files read from, archives, sockets and databases."""
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    with path.open("rb") as file, path.open("rb", buffering=0) as raw, zipfile.ZipFile(path) as archive:
        assert found(Holder(f=file)) == [("dataset.f", "handle")]
        assert found(Holder(f=raw)) == [("dataset.f", "handle")]
        assert found(Holder(f=archive)) == [("dataset.f", "handle")]
    assert found(Holder(f=file, a=archive)) == []
    with socket.socket() as connection:
        assert found(Holder(s=connection)) == [("dataset.s", "handle")]
    database = sqlite3.connect(":memory:")
    assert found(Holder(db=database)) == [("dataset.db", "handle")]
    database.close()


def test_running_threads_and_pools_are_found() -> None:
    """Forked workers get copies that do not run; what was not started yet is started by each worker."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    idle, pool = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
    assert found(Holder(thread=thread, pool=idle)) == []
    thread.start()
    with pool, ThreadPool(1) as old:
        pool.submit(int).result()
        dataset = Holder(thread=thread, pool=pool, inner=Holder(old=old))
        assert set(found(dataset)) == {
            ("dataset.thread", "thread"),
            ("dataset.pool", "thread"),
            ("dataset.inner.old", "thread"),
        }
        assert "does not run" in shared_states(dataset=dataset)[0].reason
    stop.set()
    thread.join()


def test_h5py_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package being needed; a closed file is false."""

    class File:
        __module__ = "h5py._hl.files"

        def __init__(self, *, is_open: bool) -> None:
            self.id, self._open = 1, is_open

        def __bool__(self) -> bool:
            return self._open

    assert found(Holder(f=File(is_open=True))) == [("dataset.f", "handle")]
    assert found(Holder(f=File(is_open=False))) == []


def test_harmless_things_are_not_reported(tmp_path: Path) -> None:
    """Memory files, logs, standard input, the system's random numbers and plain data."""
    log = (tmp_path / "log").open("w")
    with log:
        harmless = Holder(
            memory=io.BytesIO(b"x"),
            log=log,
            stdin=sys.stdin,
            system=random.SystemRandom(),
            data=[1] * 5,
            t=torch.ones(2),
        )
        assert found(harmless) == []
    assert found(Holder(logger=logging.getLogger("x"), numbers=[random.random()] * 1000)) == []


def test_structures_that_hold_themselves_end() -> None:
    """And each object is reported once."""
    one = Holder(rng=random.Random(0))
    one.me, one.same = one, one.rng
    assert found(one) == [("dataset.rng", "generator")]


def test_the_reason_names_attribute_harm_and_remedy() -> None:
    """Of generators and of handles."""
    (state,) = shared_states(dataset=Holder(rng=np.random.default_rng(0)))
    assert "dataset.rng is a numpy.random._generator.Generator" in state.reason
    assert "draw the same numbers" in state.reason
    assert "worker_init_fn" in state.reason
    with socket.socket() as connection:
        (state,) = shared_states(dataset=Holder(s=connection))
    assert "dataset.s is an open socket.socket" in state.reason
    assert "open it when a worker first needs it" in state.reason


class Slotted(Dataset[Any]):
    """Keeps what it has in slots, one of them private, one never filled."""

    __slots__ = ("__own", "empty", "rng")

    def __init__(self, own: Any, rng: Any) -> None:
        self.__own, self.rng = own, rng


def test_slots_are_looked_at() -> None:
    """Where there is no __dict__ entry for it."""
    assert sorted(found(Slotted(random.Random(0), np.random.default_rng(0)))) == [
        ("dataset.__own", "generator"),
        ("dataset.rng", "generator"),
    ]


def test_long_lists_are_looked_at_from_their_beginning(tmp_path: Path) -> None:
    """One open file per shard, a hundred shards; also as datasets joined, and by name."""
    (tmp_path / "shard").write_text("x")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(tmp_path / "shard")) for _ in range(100)]
        assert found(Holder(files=files))[0] == ("dataset.files[0]", "handle")
        assert found(ConcatDataset([Holder(file=file) for file in files]))[0] == ("dataset.datasets[0].file", "handle")
        assert found(Holder(files={str(at): file for at, file in enumerate(files)}))[0][1] == "handle"


def test_much_data_does_not_hide_what_comes_after_it() -> None:
    """Nested lists of thousands are looked at last."""
    samples = [[{"id": at} for at in range(100)] for _ in range(100)]
    assert found(Holder(samples=samples, rng=random.Random(0))) == [("dataset.rng", "generator")]
