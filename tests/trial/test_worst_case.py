"""Length grouping and the notes on sample costs, on the bench."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.hardware import Hardware, Limits
from autotune.measurement import DataCosts, Measured, Probe, outcome_from_json
from autotune.settings import Settings
from autotune.task import LoaderParts, Task
from autotune.trial import Bench
from autotune.trial.worst_case import WorstCase

HOST = Hardware.detect(device="cpu")
LENGTHS = [1 + index * 37 % 101 for index in range(320)]


class Reader(nn.Module):
    """Notes the shape of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(4, 2)
        self.shapes: list[tuple[int, int]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.shapes.append((ids.shape[0], ids.shape[1]))
        return self.embed(ids)


def padded(samples: list[Any]) -> Any:
    ids = nn.utils.rnn.pad_sequence([sample[0] for sample in samples], batch_first=True)
    return ids, torch.tensor([sample[1] for sample in samples])


def texts(lengths: list[int]) -> list[Any]:
    return [(torch.ones(length, dtype=torch.long), 0) for length in lengths]


def test_a_grouped_trial_trains_on_batches_of_similar_length() -> None:
    """As many rows a batch, half of the elements: what was asked for is what is measured."""
    model = Reader()
    task = Task(model, texts(LENGTHS), collate_fn=padded, loss_fn=nn.functional.cross_entropy, device="cpu")
    ticks = itertools.count()
    bench = Bench(task, HOST, Limits.of(HOST), clock=lambda: next(ticks) * 1e-3)  # so that a window holds an epoch
    bench.describe()
    elements = {}
    for grouped in (False, True):
        model.shapes.clear()
        settings = Settings(batch_size=16, num_threads=1, length_grouped=grouped)
        outcome = bench.run(Probe(kind="joint", settings=settings, window_s=0.5))
        assert isinstance(outcome, Measured), outcome
        assert outcome.largest_batch_rows == 16
        epoch = model.shapes[:20]
        assert len(epoch) == 20
        elements[grouped] = sum(rows * columns for rows, columns in epoch) / sum(rows for rows, _ in epoch)
    bench.close()
    assert elements[False] > 85  # of 101: the longest of 16
    assert elements[True] < 60  # the mean is 51


def test_the_next_process_knows_what_this_one_read(tmp_path: Path) -> None:
    """Also that there was nothing to find out; tensors, numbers and texts are all that is read back."""
    data = LoaderParts.of(texts([3, 9, 4]), collate_fn=padded)
    probe = Probe(kind="compute", settings=Settings(batch_size=2), steps=2)
    first = WorstCase(data)
    first.keep_in(tmp_path / "costs")
    (make,) = first.batches(probe)
    other = WorstCase(LoaderParts.of(texts([1, 1, 1]), collate_fn=padded))
    other.keep_in(tmp_path / "costs")
    assert len(other.batches(probe)) == 1
    assert first.data_costs(2) == other.data_costs(2)
    assert make()[0].shape == (2, 9)
    alike = WorstCase(LoaderParts.of(texts([4, 4])))
    alike.keep_in(tmp_path / "none")
    assert alike.batches(probe) == []
    assert alike.data_costs(2) is None
    again = WorstCase(data)
    again.keep_in(tmp_path / "none")
    assert again.batches(probe) == []


@pytest.mark.parametrize("known", [False, True])
def test_lengths_are_read_where_they_are_not_known(known: bool) -> None:
    """Grouping works in a process that has not looked at the data, and gives the same."""
    data = LoaderParts.of(texts([3, 9, 4]), collate_fn=padded)
    worst = WorstCase(data)
    if known:
        worst.batches(Probe(kind="compute", settings=Settings(batch_size=2), steps=2))
    assert worst.lengths(data).tolist() == [3, 9, 4]


def test_largest_samples_that_make_no_batch_give_way_to_the_next(tmp_path: Path) -> None:
    """A collate function that refuses more than 90 elements a batch: four rows of less are run, and that is said."""

    def refusing(samples: list[Any]) -> Any:
        batch = padded(samples)
        if batch[0].numel() > 90:
            raise ValueError("too much")
        return batch

    worst = WorstCase(LoaderParts.of(texts([1 + index % 40 for index in range(200)]), collate_fn=refusing))
    makers = worst.batches(Probe(kind="compute", settings=Settings(batch_size=4), steps=2))
    shapes = [tuple(make()[0].shape) for make in makers]
    assert shapes
    assert all(rows == 4 and 12 <= length <= 22 for rows, length in shapes)
    assert any("the next largest were run instead" in text for text in worst.warnings)


def test_costs_cross_as_json() -> None:
    """With the outcome that carries them."""
    costs = DataCosts(seen=3, samples=None, whole=False, mean_length=5.5, longest=9, padding_share=0.25)
    outcome = Measured(kind="compute", settings=Settings(), chunks=(), data=costs)
    assert outcome_from_json(outcome.to_json()) == outcome
