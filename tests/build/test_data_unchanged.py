"""Whatever the settings: an epoch of the emitted loader holds the samples that one of the user's loader holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from autotune.build.loader import build_loader
from autotune.settings import Settings
from autotune.task import LoaderParts


class Ids(Dataset[Any]):
    """Sample i is the number i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: Any) -> Any:
        return torch.tensor(index)


class Stream(IterableDataset[Any]):
    """The same as a stream."""

    def __init__(self, samples: int, *, shares: bool) -> None:
        self.samples, self.shares = samples, shares

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        shared = self.shares and info is not None
        first, step = (info.id, info.num_workers) if shared and info is not None else (0, 1)
        return (torch.tensor(number) for number in range(first, self.samples, step))


class SizedStream(Stream):
    """The same, telling its length."""

    def __len__(self) -> int:
        return self.samples


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def _uneven(samples: int) -> list[list[int]]:
    return [list(range(at, min(at + 1 + at % 3, samples))) for at in range(0, samples, 3)]


class OwnBatches(BatchSampler):
    """A batch sampler of the user's own."""


Kind = Callable[[int, int, bool], DataLoader[Any]]

# Each makes a user's loader anew: (samples, batch size, drop_last). Random ones draw the same numbers each time.
SIZED: dict[str, Kind] = {
    "in order": lambda n, b, d: DataLoader(Ids(n), batch_size=b, drop_last=d),
    "shuffled": lambda n, b, d: DataLoader(Ids(n), batch_size=b, drop_last=d, shuffle=True),
    "shuffled, seeded": lambda n, b, d: DataLoader(Ids(n), b, shuffle=True, drop_last=d, generator=_seeded()),
    "subset": lambda n, b, d: DataLoader(Subset(Ids(2 * n), list(range(0, 2 * n, 2))), batch_size=b, drop_last=d),
    "subset sampler": lambda n, b, d: DataLoader(
        Ids(2 * n), b, sampler=SubsetRandomSampler(range(n, 2 * n), generator=_seeded()), drop_last=d
    ),
    "weighted": lambda n, b, d: DataLoader(
        Ids(n), b, sampler=WeightedRandomSampler([1.0 + i for i in range(n)], n, generator=_seeded()), drop_last=d
    ),
    "weighted, longer": lambda n, b, d: DataLoader(
        Ids(5), b, sampler=WeightedRandomSampler([1.0, 2.0, 3.0, 4.0, 5.0], n, generator=_seeded()), drop_last=d
    ),
    "with replacement": lambda n, b, d: DataLoader(
        Ids(n), b, sampler=RandomSampler(Ids(n), replacement=True, generator=_seeded()), drop_last=d
    ),
    "distributed": lambda n, b, d: DataLoader(
        Ids(n), b, sampler=DistributedSampler(Ids(n), num_replicas=2, rank=1, shuffle=True, seed=3), drop_last=d
    ),
    "list of indices": lambda n, b, d: DataLoader(Ids(n), b, sampler=[0] * n, drop_last=d),  # type: ignore[arg-type]
    "sized stream": lambda n, b, d: DataLoader(SizedStream(n, shares=True), batch_size=b, drop_last=d),
}
KEPT: dict[str, Kind] = {
    "uneven batches": lambda n, b, d: DataLoader(Ids(n), batch_sampler=_uneven(n)),
    "batch sampler": lambda n, b, d: DataLoader(Ids(n), batch_sampler=OwnBatches(SequentialSampler(range(n)), b, d)),
    "batches as indices": lambda n, b, d: DataLoader(
        Ids(n), batch_size=None, sampler=BatchSampler(RandomSampler(range(n), generator=_seeded()), b, d)
    ),
    "unbatched stream": lambda n, b, d: DataLoader(Stream(n, shares=True), batch_size=None),
}


def _ids(loader: Any) -> Counter[int]:
    return Counter(int(number) for batch in loader for number in batch.reshape(-1))


def _ours(users: DataLoader[Any], settings: Settings, *, has_batch_norm: bool = False) -> DataLoader[Any]:
    return build_loader(LoaderParts.of(users), settings, has_batch_norm=has_batch_norm)


@pytest.mark.parametrize("kind", SIZED)
@given(
    samples=st.integers(1, 80),
    own_batch=st.integers(1, 20),
    batch=st.integers(1, 100),
    drop_last=st.booleans(),
    has_batch_norm=st.booleans(),
)
@example(samples=1, own_batch=1, batch=1, drop_last=True, has_batch_norm=True)
@example(samples=33, own_batch=8, batch=32, drop_last=True, has_batch_norm=True)
@hypothesis_settings(max_examples=25, deadline=None)
def test_an_epoch_holds_the_users_samples(
    kind: str, samples: int, own_batch: int, batch: int, drop_last: bool, has_batch_norm: bool
) -> None:
    """All of them, each as often; only an incomplete last batch of at most max(1, 10 %) may be missing.

    Where the batch is the user's own and the user drops the last one, the very same is dropped.
    """
    make = SIZED[kind]
    if len(make(samples, own_batch, drop_last)) == 0:
        own_batch = 1  # a loader without a batch is refused
    epoch, own = (_ids(make(samples, own_batch, dropping)) for dropping in (False, drop_last))
    ours = _ids(_ours(make(samples, own_batch, drop_last), Settings(batch_size=batch), has_batch_norm=has_batch_norm))
    assert not ours - epoch
    left_out = epoch.total() - ours.total()
    assert ours.total() > 0
    if batch == own_batch and drop_last and kind != "sized stream":
        assert left_out == epoch.total() - own.total()
    else:
        assert left_out <= max(1, 0.1 * epoch.total())
    if not drop_last and not has_batch_norm:
        assert ours == epoch == own


@pytest.mark.parametrize("kind", KEPT)
@given(samples=st.integers(1, 80), own_batch=st.integers(1, 20), drop_last=st.booleans())
@hypothesis_settings(max_examples=25, deadline=None)
def test_batches_of_the_users_own_come_out_as_they_are(
    kind: str, samples: int, own_batch: int, drop_last: bool
) -> None:
    """Batch by batch, in their order."""
    make = KEPT[kind]
    users, again = make(samples, own_batch, drop_last), make(samples, own_batch, drop_last)
    ours = _ours(again, Settings(batch_size=None), has_batch_norm=True)
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in users]


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_distributed_sampler_still_follows_set_epoch(epoch: int) -> None:
    """It is the user's own object; each rank's share is what it was."""
    shares = []
    for rank in (0, 1):
        sampler = DistributedSampler(Ids(40), num_replicas=2, rank=rank, seed=1)
        users = DataLoader(Ids(40), batch_size=4, sampler=sampler)
        ours = _ours(users, Settings(batch_size=16))
        sampler.set_epoch(epoch)
        shares.append([int(number) for batch in ours for number in batch])
        assert shares[-1] == list(sampler)
    assert sorted(shares[0] + shares[1]) == list(range(40))


@pytest.mark.parametrize("kind", ["weighted", "distributed", "uneven batches", "sized stream", "unbatched stream"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_change_no_epoch(kind: str, workers: int) -> None:
    """Two epochs running with persistent workers, as without."""
    make = {**SIZED, **KEPT}[kind]
    batch = None if kind in KEPT else 8
    settings = Settings(batch_size=batch).replace(num_workers=workers)
    ours, expected = _ours(make(50, 4, False), settings), make(50, 4, False)
    for _ in range(2):
        assert _ids(ours) == _ids(expected)
