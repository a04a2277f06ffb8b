"""What samples cost, and the worst batches that follow from it."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.task.costs import SampleCosts, sample_sizes

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    text: str
    box: torch.Tensor


def costs(samples: list[Any], of: int | None = -1) -> SampleCosts:
    sizes = [sample_sizes(sample) for sample in samples]
    names = tuple(dict.fromkeys(name for one in sizes for name in one))
    return SampleCosts(
        places=torch.arange(len(samples)),
        sizes=torch.tensor([[one.get(name, 0) for name in names] for one in sizes]).reshape(len(samples), len(names)),
        measures=names,
        samples=len(samples) if of == -1 else of,
    )


def tokens(*lengths: int) -> list[Any]:
    return [(torch.zeros(length), 1) for length in lengths]


@pytest.mark.parametrize(
    ("sample", "sizes"),
    [
        (torch.zeros(7), {"sample": 7, "bytes": 28}),
        ((torch.zeros(7), 3), {"0": 7, "bytes": 28}),
        (Pair(torch.zeros(2), "words"), {"0": 2, "1": 5, "bytes": 13}),
        ({"ids": [1, 2, 3], "label": 1}, {"ids": 3, "bytes": 24}),
        ([1, 2], {"sample": 2, "bytes": 16}),
        (
            (torch.zeros(3, 4, 5), torch.zeros(0, 4)),
            {"0": 60, "0.shape[0]": 3, "0.shape[1]": 4, "0.shape[2]": 5, "1": 0, "1.shape[0]": 0, "1.shape[1]": 4}
            | {"bytes": 240},
        ),
        (
            {"objects": [{"box": torch.zeros(4)}, {"box": torch.zeros(4)}]},
            {"objects objects": 2, "objects[].box": 8, "bytes": 32},
        ),
        (Record("ab", torch.zeros(4)), {"sample.0": 2, "sample.1": 4, "bytes": 18}),
    ],
    ids=["tensor", "pair", "named", "dict", "numbers", "images", "objects", "record"],
)
def test_a_sample_is_measured_by_its_parts(sample: Any, sizes: dict[str, int]) -> None:
    """Lengths, dimensions, objects and bytes of whatever a dataset yields."""
    assert sample_sizes(sample) == sizes


def test_samples_of_one_size_have_no_worst_batch() -> None:
    """Any batch will do: nothing is to be looked for."""
    assert costs(tokens(5, 5, 5)).worst(2) == []
    assert costs([]).worst(2) == []


def test_the_worst_batch_holds_the_longest_samples() -> None:
    """The two longest of five; all five where more are asked for than there are."""
    found = costs(tokens(5, 9, 2, 8, 1))
    assert [set(batch) for batch in found.worst(2)] == [{1, 3}]
    assert [len(batch) for batch in found.worst(50)] == [5]


def test_the_longest_of_each_part_meet_in_one_batch() -> None:
    """A long source with a short target and the reverse: padded together they are worse than either alone."""
    pairs = [(torch.zeros(a), torch.zeros(b)) for a, b in [(90, 1), (80, 1), (1, 40), (1, 30), (5, 5)]]
    batches = [set(batch) for batch in costs(pairs).worst(2)]
    assert {0, 2} in batches
    assert {0, 1} in batches
    assert {2, 3} in batches


def test_tall_and_wide_images_meet_in_one_batch() -> None:
    """An image padded to the tallest and widest: equal elements, different dimensions."""
    images = [torch.zeros(3, 10, 10), torch.zeros(3, 40, 5), torch.zeros(3, 5, 40), torch.zeros(3, 14, 14)]
    assert any({1, 2} <= set(batch) for batch in costs(images).worst(3))


def test_the_tallest_and_the_widest_meet_where_a_third_is_the_largest() -> None:
    """A batch of two of 90 x 5 and 5 x 90 is padded to more than one with 60 x 60 in it."""
    images = [(torch.zeros(*sides), 0) for sides in ((60, 60), (90, 5), (5, 90), (8, 8), (9, 9))]
    assert sorted([1, 2]) in [sorted(batch) for batch in costs(images).worst(2)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 100), min_size=1, max_size=60), st.integers(1, 20), st.randoms())
def test_no_batch_joins_more_objects_or_is_longer_than_the_worst(
    counts: list[int], batch_size: int, chance: Any
) -> None:
    """Whatever a shuffled epoch draws, a worst batch holds as many objects and as long a sample."""
    found = costs([(torch.zeros(3, 8), torch.zeros(count, 4)) for count in counts])
    worst = found.worst(batch_size)
    drawn = chance.sample(range(len(counts)), min(batch_size, len(counts)))
    if len(set(counts)) == 1:
        assert worst == []
        return
    assert max(sum(counts[place] for place in batch) for batch in worst) >= sum(counts[place] for place in drawn)
    assert max(max(counts[place] for place in batch) for batch in worst) == max(counts)
    assert all(len(set(batch)) == len(drawn) for batch in worst)


def test_samples_that_were_read_stand_for_those_like_them() -> None:
    """Four of 400 seen: a batch of 32 is expected to hold the longest of them only."""
    (batch,) = costs(tokens(5, 9, 2, 8), of=400).worst(32)
    assert batch == [1] * 32
    (batch,) = costs(tokens(5, 9, 2, 8), of=8).worst(4)
    assert sorted(batch) == [1, 1, 3, 3]


def test_a_stream_of_unknown_length_offers_what_was_read() -> None:
    """The costliest of them, each again where more are asked for."""
    (batch,) = costs(tokens(5, 9, 2), of=None).worst(4)
    assert set(batch) == {0, 1, 2}
    assert len(batch) == 4


def test_what_was_not_seen_is_said() -> None:
    """How many of how many; nothing where all were."""
    assert costs(tokens(1, 2)).sentence() is None
    assert "2 samples of 1,000 were read" in str(costs(tokens(1, 2), of=1000).sentence())
    assert "stream of unknown length" in str(costs(tokens(1, 2), of=None).sentence())


def test_lengths_are_of_what_varies() -> None:
    """A constant image beside a caption: the caption's length."""
    found = costs([(torch.zeros(3, 8, 8), torch.zeros(length)) for length in (3, 5)])
    assert found.lengths.tolist() == [3, 5]
    assert found.main_lengths.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("sample", "part", "elements"),
    [
        ((1, torch.zeros(400)), "1", 400),
        ((0.5, {"ids": torch.zeros(9)}), "1.ids", 9),
        ([0, [1] * 300], "1", 300),
        ((1, "a" * 500), "1", 500),
        ({"x": (1, torch.zeros(500))}, "x.1", 500),
        ({"x": [3, torch.zeros(77)]}, "x[]", 77),
        ([1] * 100 + [torch.zeros(50)], "100", 50),
    ],
    ids=["label first", "mapping", "list", "text", "nested tuple", "nested list", "at the end of many"],
)
def test_a_number_in_front_hides_nothing(sample: Any, part: str, elements: int) -> None:
    """A label may come before what it labels."""
    assert sample_sizes(sample)[part] == elements
