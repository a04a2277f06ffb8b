"""Collate functions that drop samples: neither worst batches nor groups are made of what they drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from autotune.build.length_grouping import LengthGroupedBatchSampler
from autotune.task import LoaderParts
from autotune.task.dropped import with_kept
from autotune.task.lengths import sample_lengths
from autotune.task.padding import pads
from autotune.task.scan import scan_costs, worst_batch

LENGTHS = [1 + index * 7 % 40 for index in range(400)]
TEXTS = [torch.ones(length) for length in LENGTHS]


def keeping(kept: Callable[[Any], bool]) -> Callable[[list[Any]], torch.Tensor]:
    return lambda samples: torch.nn.utils.rnn.pad_sequence([s for s in samples if kept(s)], batch_first=True)


def emptied(samples: list[Any]) -> torch.Tensor:
    kept = [sample for sample in samples if len(sample) < 30]
    return torch.nn.utils.rnn.pad_sequence(kept, batch_first=True) if kept else torch.zeros(0, 0)


def is_there(sample: Any) -> bool:
    return sample is not None


class Stream(IterableDataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.samples)


NONES = [None if index % 7 == 0 else sample for index, sample in enumerate(TEXTS)]
DROPPING: dict[str, tuple[list[Any], Callable[[list[Any]], torch.Tensor], int]] = {
    "none": (NONES, keeping(is_there), 40),
    "too long": (TEXTS, keeping(lambda sample: len(sample) < 30), 29),
    "too long, emptied": (TEXTS, emptied, 29),
    "too short": (TEXTS, keeping(lambda sample: len(sample) > 10), 40),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("case", DROPPING)
def test_the_worst_batch_is_one_of_what_is_kept(case: str, stream: bool) -> None:
    """As long as the longest sample that gets into a batch, all of its rows there; and padding is seen."""
    samples, collate, longest = DROPPING[case]
    data = LoaderParts.of(Stream(samples) if stream else samples, collate_fn=collate)
    costs = scan_costs(data, budget_s=100.0)
    assert costs is not None
    assert pads(data, costs)
    used = with_kept(data, costs).used
    assert all(tuple(worst_batch(data, places).shape) == (8, longest) for places in used.worst(8))


@pytest.mark.parametrize("case", DROPPING)
def test_no_group_is_made_of_dropped_samples(case: str) -> None:
    """Every batch of an epoch can be collated."""
    samples, collate, _ = DROPPING[case]
    lengths = sample_lengths(LoaderParts.of(samples, collate_fn=collate))
    batches = list(LengthGroupedBatchSampler(torch.randperm(400).tolist(), lengths, 16))
    assert sum(map(len, batches)) == 400
    assert all(collate([samples[index] for index in batch]).numel() for batch in batches)


def test_all_are_kept_where_no_sample_makes_a_batch_alone() -> None:
    """A collate function may need two: nothing is known of what it drops."""

    def pairs(samples: list[Any]) -> torch.Tensor:
        if len(samples) < 2:
            raise ValueError("two, please")
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    data = LoaderParts.of(TEXTS, collate_fn=pairs)
    costs = scan_costs(data, budget_s=100.0)
    assert costs is not None
    assert with_kept(data, costs).used.seen == 400
    assert pads(data, costs)


def test_a_collate_function_that_never_works_says_nothing_about_padding() -> None:
    """Where no batch can be made, there is no answer instead of an error."""

    def never(samples: list[Any]) -> torch.Tensor:
        raise ValueError("no")

    data = LoaderParts.of(TEXTS, collate_fn=never)
    costs = scan_costs(data, budget_s=100.0)
    assert costs is not None
    assert not pads(data, costs)
