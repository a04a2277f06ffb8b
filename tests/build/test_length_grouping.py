"""Batches of samples of similar length."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from autotune.build.length_grouping import ROUND, LengthGroupedBatchSampler
from autotune.build.loader import build_loader
from autotune.errors import SettingsError
from autotune.settings import Settings
from autotune.task import LoaderParts
from autotune.task.padding import padding_share


def mixed(count: int) -> torch.Tensor:
    return torch.randint(1, 200, (count,), generator=torch.Generator().manual_seed(1)).double()


def grouped(count: int, batch_size: int, seed: int | None = 0, **more: Any) -> LengthGroupedBatchSampler:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    sampler = RandomSampler(range(count), generator=generator)
    return LengthGroupedBatchSampler(sampler, mixed(count), batch_size, generator=generator, **more)


def waste(batches: list[list[int]], lengths: torch.Tensor) -> float:
    padded = sum(len(batch) * float(lengths[batch].max()) for batch in batches)
    return 1 - float(lengths[[index for batch in batches for index in batch]].sum()) / padded


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(1, 40), st.integers(1, 6), st.integers(0, 5), st.booleans())
def test_every_sample_comes_exactly_once(count: int, batch_size: int, batches: int, seed: int, drop_last: bool) -> None:
    """In every epoch, in full batches but the last, as many as its length says."""
    sampler = grouped(count, batch_size, seed, batches=batches, drop_last=drop_last)
    for _ in range(2):
        epoch = list(sampler)
        assert len(epoch) == len(sampler)
        assert all(len(batch) == batch_size for batch in epoch[:-1])
        seen = sorted(index for batch in epoch for index in batch)
        if drop_last:
            assert len(seen) == len(set(seen)) == count - count % batch_size
        else:
            assert seen == list(range(count))


def test_most_of_the_padding_is_saved() -> None:
    """Half of a random batch is padding; of a grouped one less than a twentieth."""
    lengths = mixed(4000)
    assert padding_share(lengths, 16) > 0.45
    assert waste(list(grouped(4000, 16)), lengths) < 0.05


def test_long_and_short_batches_follow_each_other_at_random() -> None:
    """Any tenth of the epoch is like the whole: the order of batches is no order of lengths."""
    lengths = mixed(16 * 500)
    means = torch.tensor([float(lengths[batch].mean()) for batch in grouped(16 * 500, 16)])
    tenths = means.reshape(10, -1).mean(dim=1)
    assert (tenths - means.mean()).abs().max() < 0.25 * means.std()
    first, second = means[:-1] - means.mean(), means[1:] - means.mean()
    assert abs(float((first * second).mean() / means.var())) < 0.25
    rounds = means.reshape(-1, ROUND).mean(dim=1)
    assert float(rounds.std()) < 0.5 * float(means.std()) / ROUND**0.5  # half of what chance alone would leave


def test_each_epoch_is_another_and_a_seed_repeats_them() -> None:
    """Without set_epoch: the generator goes on."""
    one, again, other = grouped(300, 8, 0), grouped(300, 8, 0), grouped(300, 8, 1)
    first, second = list(one), list(one)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert [first, second] == [list(again), list(again)]
    assert first != list(other)


def test_torchs_own_seed_repeats_the_order_where_no_generator_is_given() -> None:
    """As a plain shuffled DataLoader under ``torch.manual_seed``."""
    epochs = []
    for seed in (3, 3, 4):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            epochs.append(list(grouped(100, 8, None)))
    assert epochs[0] == epochs[1] != epochs[2]


def test_a_batch_that_is_dropped_holds_samples_of_any_length() -> None:
    """Over many epochs each sample is left out about equally often, short or long."""
    lengths = mixed(105)
    sampler = grouped(105, 10, drop_last=True)
    missed = torch.zeros(105)
    for _ in range(400):
        missed += 1
        missed[[index for batch in sampler for index in batch]] -= 1
    short, long = missed[lengths < 100].mean(), missed[lengths >= 100].mean()
    assert 0.75 < float(short / long) < 1.33


def test_it_goes_through_pickle() -> None:
    """With its generator's state: the copy goes on where the original stood."""
    sampler = grouped(50, 4)
    list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))
    assert list(copy) == list(sampler)


def test_an_unsized_sampler_has_no_length() -> None:
    """As with torch's own BatchSampler."""
    with pytest.raises(TypeError, match="no length"):
        len(LengthGroupedBatchSampler(iter([1]), mixed(4), 2))


class Texts(Dataset[Any]):
    """One tensor per sample, filled with its index."""

    def __init__(self, count: int) -> None:
        self.lengths = mixed(count).long().tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return torch.full((self.lengths[index],), index)


def padded(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-1)


def seen(loader: DataLoader[Any]) -> list[int]:
    return [int(index) for batch in loader for index in batch[:, 0]]


GROUPED = Settings(batch_size=8, length_grouped=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_uses_it(workers: int) -> None:
    """A torch DataLoader, every sample once, less padding than without, workers or not."""
    data = LoaderParts.of(Texts(200), collate_fn=padded)
    wanted = GROUPED.replace(num_workers=workers)
    loader = build_loader(data, wanted, has_batch_norm=False, seed=0)
    assert type(loader) is DataLoader
    assert len(loader) == 25
    assert sorted(seen(loader)) == list(range(200))
    plain = build_loader(data, Settings(batch_size=8), has_batch_norm=False, seed=0)
    assert sum(batch.numel() for batch in loader) < 0.7 * sum(batch.numel() for batch in plain)


def test_a_seed_repeats_a_grouped_loader() -> None:
    """Two trials with one seed see the same batches."""
    data = LoaderParts.of(Texts(100), collate_fn=padded)
    first, again = (seen(build_loader(data, GROUPED, has_batch_norm=False, seed=5)) for _ in range(2))
    assert first == again


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 3))
def test_the_multiset_of_samples_is_that_of_the_users_sampler(count: int, batch_size: int, seed: int) -> None:
    """Random, weighted with repetition, a list, one rank of several: as drawn, whatever the batch."""
    dataset = Texts(count)

    def samplers() -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return [
            WeightedRandomSampler(range(1, count + 1), 2 * count, generator=generator),
            RandomSampler(dataset, generator=generator),
            [index % count for index in range(count + 3)],
            DistributedSampler(dataset, num_replicas=2, rank=1, seed=seed),
        ]

    for plain, given_one in zip(samplers(), samplers(), strict=True):
        data = LoaderParts.of(dataset, collate_fn=padded, sampler=given_one)
        loader = build_loader(data, Settings(batch_size=batch_size, length_grouped=True), has_batch_norm=False)
        assert sorted(seen(loader)) == sorted(plain)


def test_validation_is_not_grouped() -> None:
    """Every sample once, in order."""
    data = LoaderParts.of(Texts(20), collate_fn=padded)
    assert seen(build_loader(data, GROUPED, has_batch_norm=False, train=False)) == list(range(20))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (LoaderParts.of(Stream()), "stream"),
        (LoaderParts.of(Texts(4), shuffle=False), "shuffle=False"),
    ],
)
def test_an_order_that_is_not_ours_is_not_changed(data: LoaderParts, reason: str) -> None:
    """A stream, or samples in the order of the dataset: refused with the reason."""
    assert reason in str(data.order_kept)
    with pytest.raises(SettingsError, match=reason):
        build_loader(data, GROUPED, has_batch_norm=False)
