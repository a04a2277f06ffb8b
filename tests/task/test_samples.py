"""The first samples as one batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from autotune.errors import TaskError
from autotune.task import LoaderParts, first_batch
from autotune.task.samples import stacking_refusal


class Ragged(Dataset[Any]):
    """Images of growing height."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, 16 + index, 16), index


class Stream(IterableDataset[Any]):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(self.samples))


def data(samples: int = 20) -> TensorDataset:
    return TensorDataset(torch.arange(samples))


def pad(samples: list[Any]) -> Any:
    height = max(image.shape[1] for image, _ in samples)
    return torch.stack([nn_pad(image, height) for image, _ in samples])


def nn_pad(image: torch.Tensor, height: int) -> torch.Tensor:
    return torch.nn.functional.pad(image, (0, 0, 0, height - image.shape[1]))


def test_a_batch_has_the_rows_asked_for_or_all_there_are() -> None:
    """Default: the loader's batch size, else 32; short datasets give what they have."""
    assert first_batch(LoaderParts.of(data()), rows=4)[0].tolist() == [0, 1, 2, 3]
    assert len(first_batch(LoaderParts.of(data()))[0]) == 20
    assert len(first_batch(LoaderParts.of(DataLoader(data(), batch_size=3)))[0]) == 3
    assert first_batch(LoaderParts.of(Stream(9)), rows=2).tolist() == [0, 1]
    assert first_batch(LoaderParts.of(data(), sampler=[7, 5, 3]), rows=2)[0].tolist() == [7, 5]


def test_batches_that_are_not_ours_come_as_they_are() -> None:
    """Custom batch samplers and datasets of whole batches decide the rows."""

    class Threes(BatchSampler):
        pass

    custom = DataLoader(data(), batch_sampler=Threes(range(20), 3, False))
    assert first_batch(LoaderParts.of(custom), rows=8)[0].tolist() == [0, 1, 2]
    whole = DataLoader([torch.arange(5), torch.arange(6)], batch_size=None)
    assert first_batch(LoaderParts.of(whole)).tolist() == [0, 1, 2, 3, 4]
    assert first_batch(LoaderParts.of(DataLoader(Stream(3), batch_size=None))).tolist() == 0


def test_a_dataset_that_fetches_in_one_go_is_asked_so() -> None:
    """``__getitems__`` is used where torch's loader would use it."""

    class Fetching(TensorDataset):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [torch.tensor(-index) for index in indices]

    assert first_batch(LoaderParts.of(Fetching(torch.arange(9))), rows=3).tolist() == [0, -1, -2]


def test_samples_of_unequal_sizes_are_shown_and_the_remedy_is_collate_fn() -> None:
    """They work at batch 1 and fail at 4; with a collate that pads they work.

    Report: milesial/Pytorch-UNet#285.
    """
    parts = LoaderParts.of(Ragged())
    assert first_batch(parts, rows=1)[0].shape == (1, 3, 16, 16)
    with pytest.raises(TaskError, match="collate_fn") as caught:
        first_batch(parts, rows=4)
    assert "float32[3,16,16]" in str(caught.value)
    assert "float32[3,17,16]" in str(caught.value)
    assert "memory" not in str(caught.value)
    assert "unequal sizes" in str(stacking_refusal(parts))
    padded = LoaderParts.of(Ragged(), collate_fn=pad)
    assert first_batch(padded, rows=4).shape == (4, 3, 19, 16)
    assert stacking_refusal(padded) is None


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        (LoaderParts.of([object(), object()]), "default collate_fn failed on samples like object"),
        (LoaderParts.of(data(), collate_fn=lambda samples: samples.nothing), "lambda.* failed"),
        (LoaderParts.of(Stream(0)), "no samples"),
        (LoaderParts.of([1, 2], sampler=[5]), "IndexError"),
        (LoaderParts.of(DataLoader(Stream(0), batch_size=None)), "StopIteration"),
    ],
)
def test_what_makes_no_batch_is_named(parts: LoaderParts, named: str) -> None:
    """Dataset and collate_fn are told apart."""
    with pytest.raises(TaskError, match=named):
        first_batch(parts)


def test_reading_leaves_every_random_generator_as_it_was() -> None:
    """python's, numpy's, torch's and the sampler's own."""
    numpy = pytest.importorskip("numpy")

    class Noisy(Dataset[Any]):
        def __len__(self) -> int:
            return 9

        def __getitem__(self, index: int) -> Any:
            return torch.rand(2) + random.random() + numpy.random.rand()

    dataset = Noisy()
    generator = torch.Generator()
    parts = LoaderParts.of(dataset, sampler=RandomSampler(dataset, generator=generator))
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].copy(), generator.get_state()
    first_batch(parts, rows=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (numpy.random.get_state()[1] == before[2]).all()
    assert torch.equal(generator.get_state(), before[3])
