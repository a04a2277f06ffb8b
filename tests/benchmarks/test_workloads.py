"""The benchmark workloads, a handful of samples each, offline and in a folder of their own."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from benchmarks.workloads import NAMES, workload
from benchmarks.workloads.cache import prepared
from benchmarks.workloads.fashion_mnist import _member


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_BENCHMARK_CACHE", str(tmp_path))
    monkeypatch.setenv("AUTOTUNE_BENCHMARK_OFFLINE", "1")
    monkeypatch.delenv("AUTOTUNE_FASHION_MNIST", raising=False)
    monkeypatch.delenv("AUTOTUNE_NYCFLIGHTS13", raising=False)


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """w3 and w5 read three files of the library in place of all."""
    from benchmarks.workloads import stdlib, w3_docstrings

    some = [path for path in stdlib.stdlib_files() if path.name in ("argparse.py", "json.py", "random.py")]
    monkeypatch.setattr(w3_docstrings, "stdlib_files", lambda: some)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("few_files")
def test_a_batch_of_the_baseline_trains_one_step_with_a_finite_loss(name: str) -> None:
    """Model, data, loss and optimizer of each workload fit together, and the step changes the weights."""
    job = workload(name, size=80)
    batch = next(iter(job.loader()))
    assert len(batch[1]) == job.batch_size
    model = job.model()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer = job.optimizer(model.parameters())
    loss = job.loss_fn(model(batch[0]), batch[1])
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert math.isfinite(float(loss.detach()))
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_a_workload_can_be_pickled(name: str) -> None:
    """A process of its own gets the workload by value; the copy is of the same name and makes the same model."""
    job = workload(name, size=64)
    copy: Any = pickle.loads(pickle.dumps(job))
    assert copy.name == name
    assert type(copy.model()) is type(job.model())


def test_an_unknown_workload_is_refused_by_name() -> None:
    """The message lists those there are."""
    with pytest.raises(ValueError, match="w1, w2"):
        workload("w9")


def test_what_stands_in_for_missing_data_is_said_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    """Offline, without a file named, both data sets are random and stderr says so each time."""
    for name in ("w2", "w4", "w4"):
        workload(name, size=64).dataset()
    assert capsys.readouterr().err.count("SYNTHETIC STAND-IN") == 3


def test_the_workers_of_the_stream_share_the_files_out() -> None:
    """Two workers together yield what one process does, each sample once."""
    data = workload("w5", size=5).dataset()

    def seen(workers: int) -> list[list[int]]:
        return sorted(x.tolist() for batch, _ in DataLoader(data, batch_size=16, num_workers=workers) for x in batch)

    assert seen(0) == seen(2)


@pytest.mark.usefixtures("few_files")
def test_texts_held_out_are_never_trained_on() -> None:
    """Together, the two parts hold every text once."""
    job = workload("w3")
    assert job.held_out is not None
    trained, held_out = job.dataset(), job.held_out()
    assert len(held_out) < len(trained) / 5  # type: ignore[arg-type]
    assert not {text for text, _ in held_out.texts} & {text for text, _ in trained.texts}  # type: ignore[attr-defined]


def test_data_is_prepared_once_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    """The second call finds what the first made; what raised is tried again."""

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        prepared("thing", fail)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    assert prepared("thing", lambda path: path.write_text("whole")).read_text() == "whole"
    assert prepared("thing", fail).read_text() == "whole"


def test_a_member_is_found_in_a_debian_package() -> None:
    """Members of odd length are padded, and the one after is still found."""

    def member(name: str, content: bytes) -> bytes:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        return header + content + b"\n" * (len(content) % 2)

    package = b"!<arch>\n" + member("debian-binary", b"2.0") + member("data.tar.xz", b"content")
    assert _member(package, "data.tar") == b"content"
