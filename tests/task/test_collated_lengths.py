"""Lengths as they are in a batch: what the collate function makes of the samples decides, not what they hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from autotune.task import LoaderParts
from autotune.task.collated_lengths import with_collated
from autotune.task.costs import SampleCosts
from autotune.task.lengths import sample_lengths
from autotune.task.padding import padding_share, pads
from autotune.task.scan import scan_costs

CHANCE = random.Random(0)
RECORDS = [{"ids": [1] * CHANCE.randint(1, 60), "text": "a" * CHANCE.randint(1, 3000)} for _ in range(600)]
LONG = [{"ids": [1] * (500 + index * 37 % 4500)} for index in range(600)]


def padded(length: Callable[[Any], int]) -> Callable[[list[Any]], Any]:
    """Batches of ids and labels whose ids are so long."""

    def collate(samples: list[Any]) -> Any:
        ids = [torch.ones(length(sample)) for sample in samples]
        return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.zeros(len(samples))

    return collate


CASES: dict[str, tuple[list[Any], Callable[[Any], int]]] = {
    "all of it": (RECORDS, lambda sample: len(sample["ids"])),
    "cut off": (LONG, lambda sample: min(512, len(sample["ids"]))),
    "cut off early": (RECORDS, lambda sample: min(20, len(sample["ids"]))),
    "with special tokens": (RECORDS, lambda sample: min(40, len(sample["ids"]) + 2)),
    "the text": (RECORDS, lambda sample: len(sample["text"])),
}


def known(data: LoaderParts) -> SampleCosts:
    costs = scan_costs(data, budget_s=100.0)
    assert costs is not None
    return with_collated(data, costs)


@pytest.mark.parametrize("case", CASES)
def test_lengths_are_those_in_the_batch(case: str) -> None:
    """Of each sample, exactly; so is the padding, and what groups are made by."""
    samples, length = CASES[case]
    data = LoaderParts.of(samples, collate_fn=padded(length))
    costs = known(data)
    expected = [float(length(samples[place])) for place in costs.places.tolist()]
    assert costs.main_lengths.tolist() == costs.lengths.tolist() == expected
    assert pads(data, costs)
    assert sample_lengths(data).tolist() == [float(length(sample)) for sample in samples]
    if case == "cut off":
        assert padding_share(costs.lengths, 16) < 0.001


def test_tokens_are_nearly_proportional_to_characters() -> None:
    """A tokenizer in the collate function: a token for four characters or so."""
    data = LoaderParts.of(RECORDS, collate_fn=padded(lambda sample: 2 + len(sample["text"]) // 4))
    costs = known(data)
    expected = torch.tensor([2 + len(RECORDS[place]["text"]) // 4 for place in costs.places.tolist()])
    assert (costs.lengths - expected).abs().max() < 2


def test_nothing_is_said_where_no_measure_agrees() -> None:
    """Lengths in the batch that have nothing to do with the samples' own: neither padding nor groups follow."""
    drawn = {id(sample): CHANCE.randint(1, 100) for sample in RECORDS}
    by_ids = {(len(sample["ids"]), len(sample["text"])): drawn[id(sample)] for sample in RECORDS}
    collate = padded(lambda sample: by_ids[len(sample["ids"]), len(sample["text"])])
    data = LoaderParts.of(RECORDS, collate_fn=collate)
    costs = known(data)
    assert costs.collated is None
    assert not pads(data, costs)


def test_several_padded_parts_are_added_up() -> None:
    """Ids twice and the text once; the part that varies most gives the length."""

    def both(samples: list[Any]) -> Any:
        ids, _ = padded(lambda sample: len(sample["ids"]))(samples)
        text, _ = padded(lambda sample: len(sample["text"]))(samples)
        return ids, ids.bool(), text

    costs = known(LoaderParts.of(RECORDS, collate_fn=both))
    sizes = [(len(RECORDS[place]["ids"]), len(RECORDS[place]["text"])) for place in costs.places.tolist()]
    assert costs.lengths.tolist() == [2 * ids + text for ids, text in sizes]
    assert costs.main_lengths.tolist() == [text for _, text in sizes]


class Fresh(Dataset[Any]):
    """Records made anew each time."""

    def __len__(self) -> int:
        return len(RECORDS)

    def __getitem__(self, index: int) -> Any:
        return dict(RECORDS[index])


def test_a_collate_function_may_take_its_samples_apart() -> None:
    """As that of a tokenizer does, which takes columns out of them."""

    def popping(samples: list[Any]) -> Any:
        return padded(len)([sample.pop("ids") for sample in samples])

    data = LoaderParts.of(Fresh(), collate_fn=popping)
    assert sample_lengths(data).tolist() == [len(record["ids"]) for record in RECORDS]
    assert pads(data, known(data))
