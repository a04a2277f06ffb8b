"""The data delivered is the data that the user had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autotune.build.loader import build_loader, loader_arguments
from autotune.config.assemble import assemble
from autotune.config.verdict import judge
from autotune.errors import TaskError
from autotune.hardware import Limits
from autotune.measurement import Measured
from autotune.planner import Found
from autotune.race import RaceResult
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.task import LoaderParts, Task
from tests.faults.small_task import HOST, Net, bench, largest, probe, rows


class Stream(IterableDataset[Any]):
    """Fifty rows, without a length."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(50):
            yield torch.full((8,), float(number)), number % 2


def test_a_stream_without_a_length_is_tuned_and_never_shuffled() -> None:
    """It trains, its largest batch is found, and what is emitted makes a DataLoader of it.

    Report: Project-MONAI/MONAI#3195.
    """
    assert largest(Net(), Stream()).batch_size == 50
    with contextlib.closing(bench(Net(), Stream())) as one:
        facts = one.describe()
        assert isinstance(one.run(probe(batch_size=8)), Measured)
    baseline = Candidates.of(facts, HOST, Limits.of(HOST), BatchRules(), Space()).baseline
    arguments = loader_arguments(LoaderParts.of(Stream()), baseline, has_batch_norm=False)
    assert "shuffle" not in arguments
    assert sum(len(x) for x, _ in DataLoader(Stream(), **arguments)) == 50


@pytest.mark.parametrize("batch_size", [8, 10, 16, 64])
@pytest.mark.parametrize("given", [True, False])
def test_ten_rows_are_never_no_batch(batch_size: int, given: bool) -> None:
    """A batch grown beyond the data would, with drop_last, train on nothing without a word.

    Report: dreamquark-ai/tabnet#537.
    """
    data = LoaderParts.of(DataLoader(rows(10), batch_size=5, drop_last=True) if given else rows(10))
    assert len(list(build_loader(data, Settings(batch_size=batch_size), has_batch_norm=False))) >= 1


def test_a_users_own_loader_without_a_batch_is_an_error() -> None:
    """It is not quietly replaced by another, nor is a loss of zero reported.

    Report: dreamquark-ai/tabnet#537.
    """
    with pytest.raises(TaskError, match="yields no batch: 10 samples, batch_size=64, drop_last=True"):
        LoaderParts.of(DataLoader(rows(10), batch_size=64, drop_last=True))


class Drawing(Dataset[Any]):
    """Each sample is a number drawn with numpy."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return np.random.randint(2**30)


@pytest.mark.parametrize("seed", [None, 0])
def test_workers_draw_different_numpy_numbers(seed: int | None) -> None:
    """The loader that is emitted, and that of trials, keep torch's own seeding of workers: no number comes twice.

    Report: facebookresearch/fairseq#1383.
    """
    settings = Settings(batch_size=1).replace(num_workers=2)
    loader = build_loader(LoaderParts.of(Drawing()), settings, has_batch_norm=False, seed=seed)
    drawn = [int(number) for number in loader]
    assert len(set(drawn)) == len(drawn) == 8


def test_one_batch_size_everywhere() -> None:
    """Settings, returned loader, JSON and the evidence of one call hold the same batch size.

    Reports: Lightning-AI/pytorch-lightning#12768, Lightning-AI/pytorch-lightning#7466.
    """
    task = Task(Net(), DataLoader(rows(), batch_size=16), loss_fn=torch.nn.functional.cross_entropy, device="cpu")
    with contextlib.closing(bench(task.model, DataLoader(rows(), batch_size=16))) as one:
        space = Candidates.of(one.describe(), HOST, Limits.of(HOST), BatchRules(), Space())
    won = space.baseline.replace(batch_size=128)
    race = RaceResult(
        baseline=space.baseline,
        candidate=won,
        baseline_samples_per_s=(100.0,) * 5,
        candidate_samples_per_s=(200.0,) * 5,
        margin=0.05,
    )
    verdict = judge(
        space.baseline,
        Found(baseline=None, finalists=(), stopped="done"),
        [race],
        outcomes=(),
        dropped=space.dropped,
        warnings=(),
        spent_s={},
    )
    tuned = assemble(verdict, space, task=task, hardware=HOST, lr_scaling="linear")
    stored = tuned.to_json()
    assert tuned.settings.batch_size == 128
    assert tuned.dataloader().batch_size == 128
    assert len(next(iter(tuned.dataloader()))[0]) == 128
    assert stored["dataloader"]["batch_size"] == stored["effective_batch_size"] == 128
