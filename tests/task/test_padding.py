"""Whether batches are padded, and what share of them is padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils.data import DataLoader

from autotune.task import LoaderParts
from autotune.task.collated_lengths import with_collated
from autotune.task.padding import padding_share, pads, share_of_padding
from autotune.task.scan import scan_costs

LENGTHS = [3, 4, 20, 5, 40, 41]


def to_longest(samples: list[Any]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def time_first(samples: list[Any]) -> Any:
    return {"ids": torch.nn.utils.rnn.pad_sequence(samples), "lengths": torch.tensor([len(s) for s in samples])}


def to_64(samples: list[Any]) -> torch.Tensor:
    return torch.stack([torch.nn.functional.pad(sample, (0, 64 - len(sample))) for sample in samples])


def joined(samples: list[Any]) -> Any:
    return torch.cat(samples), torch.tensor([len(sample) for sample in samples])


@pytest.mark.parametrize(
    ("collate", "expected"),
    [(to_longest, True), (time_first, True), (to_64, False), (joined, False), (list, False)],
    ids=["to the longest", "time first", "to one length", "joined", "listed"],
)
def test_padding_is_told_from_what_looks_like_it(collate: Callable[..., Any], expected: bool) -> None:
    """Only batches as long as their longest sample gain from samples of equal length."""
    data = LoaderParts.of([torch.ones(length) for length in LENGTHS], collate_fn=collate)
    costs = scan_costs(data, budget_s=10.0)
    assert costs is not None
    assert pads(data, costs) is expected


def test_equal_samples_need_no_padding() -> None:
    """There is nothing to pad."""
    data = LoaderParts.of([torch.ones(3)] * 4, collate_fn=to_longest)
    costs = scan_costs(data, budget_s=10.0)
    assert costs is not None
    assert not pads(data, costs)


@pytest.mark.parametrize(("batch_size", "share"), [(1, 0.0), (2, 1 - 2 / (0.25 * 1 + 0.75 * 3))])
def test_the_share_is_that_of_the_distribution_on_paper(batch_size: int, share: float) -> None:
    """Lengths 1 and 3: of two draws, one in four has no 3."""
    assert padding_share(torch.tensor([1.0, 3.0]), batch_size) == pytest.approx(share)


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=64, max_size=128), st.integers(1, 8))
def test_the_share_agrees_with_batches_really_drawn(lengths: list[int], batch_size: int) -> None:
    """Against the mean over many shuffled epochs."""
    values = torch.tensor(lengths, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    padded, real = 0.0, 0.0
    for _ in range(30):
        order = torch.randperm(len(values), generator=generator)
        batches = values[order[: len(values) // batch_size * batch_size]].reshape(-1, batch_size)
        padded += float(batches.amax(dim=1).sum()) * batch_size
        real += float(batches.sum())
    assert padding_share(values, batch_size) == pytest.approx(1 - real / padded, abs=0.04)


def test_images_padded_in_both_dimensions_waste_more_than_their_sizes_say() -> None:
    """A batch is as high as its highest image and as wide as its widest: the share is that of real batches."""
    generator = torch.Generator().manual_seed(0)
    sides = torch.randint(8, 65, (400, 2), generator=generator).tolist()
    images = [torch.zeros(3, height, width) for height, width in sides]

    def padded(samples: list[torch.Tensor]) -> torch.Tensor:
        high, wide = (max(sample.shape[dim] for sample in samples) for dim in (1, 2))
        return torch.stack([functional.pad(one, (0, wide - one.shape[2], 0, high - one.shape[1])) for one in samples])

    data = LoaderParts.of(images, collate_fn=padded)
    costs = scan_costs(data, budget_s=30.0)
    assert costs is not None
    costs = with_collated(data, costs)
    assert pads(data, costs)
    loader = DataLoader(images, batch_size=4, shuffle=True, collate_fn=padded, generator=generator)  # type: ignore[arg-type]
    made = sum(batch.numel() for _ in range(5) for batch in loader) / 5
    real = sum(image.numel() for image in images)
    share = share_of_padding(costs.used, 4)
    assert share == pytest.approx(1 - real / made, abs=0.04)
    assert share > padding_share(costs.used.lengths, 4) + 0.1
