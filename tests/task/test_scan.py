"""Reading the samples for what they cost, against a clock that passes only while they are read."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from autotune.task import LoaderParts
from autotune.task.lengths import sample_lengths
from autotune.task.scan import _spread_out, scan_costs, worst_batch


class Lengths(Dataset[Any]):
    """Samples of given lengths, each of which takes ``read_s`` of its own clock to read."""

    def __init__(self, lengths: list[int], read_s: float = 0.0) -> None:
        self.lengths, self.read_s = lengths, read_s
        self.now = 0.0
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        self.now += self.read_s
        return torch.ones(self.lengths[index])

    def clock(self) -> float:
        return self.now


def padded(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def mixed(count: int) -> list[int]:
    return [1 + index * 37 % 50 for index in range(count)]


def parts(dataset: Any, **arguments: Any) -> LoaderParts:
    return LoaderParts.of(dataset, collate_fn=padded, **arguments)


def test_what_is_quick_to_read_is_read_in_full() -> None:
    """Every sample once, and the result says so."""
    data = Lengths(mixed(1000))
    costs = scan_costs(parts(data), budget_s=1.0, clock=data.clock)
    assert costs is not None
    assert costs.whole
    assert sorted(data.read) == list(range(1000))
    assert dict(zip(costs.places.tolist(), costs.lengths.tolist(), strict=True)) == dict(
        enumerate(map(float, mixed(1000)))
    )


def test_what_is_slow_to_read_is_read_for_its_share_of_the_time() -> None:
    """A second a sample and ten seconds: ten of 10,000, both ends among them, no gap larger than a third."""
    data = Lengths(mixed(10_000), read_s=1.0)
    costs = scan_costs(parts(data), budget_s=10.0, clock=data.clock)
    assert costs is not None
    assert not costs.whole
    assert data.now <= 10.0
    assert costs.seen == len(data.read) == 10
    assert {0, 9999} <= set(data.read)
    spread = sorted(data.read)
    assert max(later - earlier for earlier, later in itertools.pairwise(spread)) < 10_000 / 3
    assert "10 samples of 10,000" in str(costs.sentence())


def test_long_samples_in_a_row_are_found_around_the_first_of_them() -> None:
    """A block of 200 growing samples among 20,000: what is left of the time goes to the longest one's neighbours."""
    data = Lengths([10] * 8000 + list(range(1000, 1200)) + [10] * 11_800, read_s=0.01)
    costs = scan_costs(parts(data), budget_s=5.0, clock=data.clock)
    assert costs is not None
    best = max(costs.places.tolist(), key=lambda index: data.lengths[index])
    block = [index for index in data.read if 8000 <= index < 8200]
    assert len(block) > 40
    assert data.lengths[best] > 1000


@pytest.mark.parametrize("late", [4_001, 9_998])
def test_one_long_sample_among_equal_ones_is_found_where_reading_is_quick(late: int) -> None:
    """Looking on costs a second at most, so equal beginnings do not end it."""
    data = Lengths([10] * late + [500] + [10] * (9_999 - late), read_s=0.0001)
    costs = scan_costs(parts(data), budget_s=100.0, clock=data.clock)
    assert costs is not None
    assert costs.worst(1) == [[late]]


def test_equal_samples_that_are_slow_to_read_are_left_alone_soon() -> None:
    """64 of them and a second, not a share of a long budget."""
    data = Lengths([10] * 10_000, read_s=0.015)
    costs = scan_costs(parts(data), budget_s=1000.0, clock=data.clock)
    assert costs is not None
    assert data.now <= 1.0
    assert costs.varying == ()


@pytest.mark.parametrize(
    "data",
    [
        LoaderParts.of(TensorDataset(torch.zeros(9, 2)), collate_fn=list),
        LoaderParts.of(DataLoader(Lengths([1, 2]), batch_sampler=[[0], [1]])),
        LoaderParts.of(DataLoader(Lengths([1, 2]), batch_size=None)),
        LoaderParts.of(Lengths([3, 3, 3])),
    ],
    ids=["tensors", "batch sampler", "whole batches", "stacked"],
)
def test_nothing_is_read_where_batches_cannot_differ(data: LoaderParts) -> None:
    """A TensorDataset, batches of the user's own, samples that torch stacks: one look at most."""
    assert scan_costs(data, budget_s=10.0) is None
    assert len(getattr(data.dataset, "read", [])) <= 1


def test_texts_that_torch_lists_are_measured() -> None:
    """A model that tokenizes its own input sees longer and shorter texts."""
    costs = scan_costs(LoaderParts.of([("a" * length, 1) for length in (3, 90, 7)]), budget_s=10.0)
    assert costs is not None
    assert costs.worst(1) == [[1]]


def test_only_what_the_sampler_draws_is_read() -> None:
    """The longest sample is not in the subset: it plays no part; places lead to the right samples."""
    data = Lengths([5, 500, 7, 6])
    subset = parts(data, sampler=SubsetRandomSampler([3, 0, 2]))
    costs = scan_costs(subset, budget_s=10.0)
    assert costs is not None
    assert costs.whole
    assert 1 not in data.read
    assert worst_batch(subset, costs.worst(1)[0]).shape == (1, 7)


def test_all_samples_are_read_under_samplers_that_may_draw_any() -> None:
    """Random and weighted ones; their generators stay where they were."""
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    for sampler in (
        RandomSampler(range(4), num_samples=2, generator=generator),
        WeightedRandomSampler([1.0] * 4, 2, generator=generator),
    ):
        data = Lengths([5, 500, 7, 6])
        costs = scan_costs(parts(data, sampler=sampler), budget_s=10.0)
        assert costs is not None
        assert sorted(data.read) == [0, 1, 2, 3]
    assert torch.equal(generator.get_state(), before)


def test_a_sample_that_cannot_be_read_is_said_and_passed_over() -> None:
    """The others are measured all the same."""

    class Broken(Lengths):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 2:
                raise OSError("truncated file")
            return super().__getitem__(index)

    costs = scan_costs(parts(Broken([1, 2, 3, 4])), budget_s=10.0)
    assert costs is not None
    assert costs.whole
    assert "raised at 1 of its samples, first: OSError: truncated file." in str(costs.sentence())


class Augmented(Dataset[Any]):
    """Samples whose length is drawn anew each time."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = int(torch.randint(1, 100, ())) + random.randrange(100) + int(np.random.randint(100))
        return torch.ones(drawn)


def test_random_lengths_are_drawn_again_as_they_were() -> None:
    """The longest sample of the reading is as long in the worst batch."""
    data = parts(Augmented())
    costs = scan_costs(data, budget_s=10.0)
    assert costs is not None
    assert worst_batch(data, costs.worst(1)[0]).shape[1] == costs.main_lengths.max()


def test_random_states_are_what_they_were() -> None:
    """Python's, numpy's and torch's, after reading and after a batch was made."""
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    data = parts(Augmented())
    costs = scan_costs(data, budget_s=10.0)
    assert costs is not None
    worst_batch(data, costs.worst(4)[0])
    sample_lengths(data)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


class Stream(IterableDataset[Any]):
    """Samples of given lengths one after the other, on a clock of its own."""

    def __init__(self, lengths: list[int], read_s: float = 0.0) -> None:
        self.lengths, self.read_s, self.now = lengths, read_s, 0.0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for length in self.lengths:
            self.now += self.read_s
            yield torch.ones(length)


def test_a_short_stream_is_read_to_its_end() -> None:
    """Its length is known by then."""
    data = parts(Stream([3, 9, 4]))
    costs = scan_costs(data, budget_s=10.0)
    assert costs is not None
    assert (costs.samples, costs.whole) == (3, True)
    assert worst_batch(data, costs.worst(2)[0]).shape == (2, 9)


def test_a_long_stream_is_read_for_less_since_it_is_read_again() -> None:
    """A fifth of the time, then the costliest of what was read."""
    stream = Stream([3, 9, 4] * 10_000, read_s=1.0)
    costs = scan_costs(parts(stream), budget_s=50.0, clock=lambda: stream.now)
    assert costs is not None
    assert (costs.samples, costs.whole) == (None, False)
    assert costs.seen == stream.now == 10
    assert "stream of unknown length" in str(costs.sentence())


def test_lengths_of_all_samples_come_in_the_order_of_the_dataset() -> None:
    """Also where a sampler draws few, whose others count as nothing."""
    assert sample_lengths(parts(Lengths([5, 1, 9]))).tolist() == [5, 1, 9]
    assert sample_lengths(parts(Lengths([5, 1, 9]), sampler=[2, 0])).tolist() == [5, 0, 9]
    assert sample_lengths(parts(Lengths([4, 4]))).tolist() == [0, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 64, 1000, 1024])
def test_the_order_takes_every_place_once_and_is_spread_from_the_start(count: int) -> None:
    """Any beginning of it leaves no gap much larger than even spacing would."""
    order = list(_spread_out(count))
    assert sorted(order) == list(range(count))
    some = sorted(order[:20])
    gaps = [later - earlier for earlier, later in itertools.pairwise(some)]
    assert max(gaps, default=0) <= max(1, math.ceil(3.5 * count / 20))


class Claims(Lengths):
    """Says that it has ever so many samples."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> torch.Tensor:
        self.read.append(index)
        self.now += 1.0
        return torch.ones(1 + index % 9)


def test_a_dataset_without_end_is_read_like_any_other() -> None:
    """Nothing is laid out for each of 10 ** 12 samples; torch's own collate function needs one look."""
    data = Claims([])
    costs = scan_costs(parts(data), budget_s=10.0, clock=data.clock)
    assert costs is not None
    assert costs.seen == len(data.read) == 10
    assert scan_costs(LoaderParts.of(Claims([])), budget_s=10.0) is None
    assert "1,000,000,000,000 samples, too many" in str(parts(data).order_kept)


class Endless(Sampler[Any]):
    """Pairs of a number and a size, for ever, from 60 of them."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield random.randrange(20), random.randrange(3)


class Scaled(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, key: tuple[int, int]) -> torch.Tensor:
        return torch.ones(1 + key[0] + key[1])


def test_a_sampler_of_keys_may_have_no_end() -> None:
    """What it draws in a tenth of the time is read, and the worst batch made of it."""
    ticks = itertools.count()
    data = parts(Scaled(), sampler=Endless())
    costs = scan_costs(data, budget_s=5.0, clock=lambda: next(ticks) * 1e-3)
    assert costs is not None
    assert (costs.samples, costs.seen) == (None, 60)
    assert worst_batch(data, costs.worst(2)[0]).shape == (2, 22)


@pytest.mark.parametrize(
    ("sampler", "refused"),
    [
        (Endless(), "type tuple"),
        (["a", "b"], "type str"),
        (SubsetRandomSampler(["a", "b"]), "type str"),  # type: ignore[list-item]
        ([2, 1], None),
        (torch.tensor([2, 1]), None),
        (RandomSampler(range(3)), None),
    ],
    ids=["pairs", "texts", "subset of texts", "numbers", "tensor", "torch's own"],
)
def test_keys_that_are_no_numbers_keep_their_order(sampler: Any, refused: str | None) -> None:
    """Lengths are looked up by number; the look at a sampler's first key draws no random number."""
    before = random.getstate()
    found = parts(Lengths([1, 2, 3]), sampler=sampler).order_kept
    assert found is None if refused is None else refused in str(found)
    assert random.getstate() == before
