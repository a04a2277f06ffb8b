"""From a stream to the emitted loader: whatever settings the space admits, an epoch holds the user's samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, WeightedRandomSampler, get_worker_info

from autotune.config import TunedConfig
from autotune.hardware import Hardware, Limits
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.task import Task
from tests.config.conftest import TinyNet, facts_of, images, sgd

MakeConfig = Callable[..., TunedConfig]


class Images(IterableDataset[Any]):
    """Images that hold nothing but their number."""

    def __init__(self, *, shares: bool) -> None:
        self.shares = shares

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        shared = self.shares and info is not None
        first, step = (info.id, info.num_workers) if shared and info is not None else (0, 1)
        return ((torch.full((3, 8, 8), float(number)), number % 2) for number in range(first, 40, step))


def _task(data: Any) -> Task:
    return Task(TinyNet, data, loss_fn=torch.nn.CrossEntropyLoss(), optimizer=sgd, device="cpu")


def _ids(loader: Any) -> Counter[float]:
    return Counter(float(image[0, 0, 0]) for batch, _ in loader for image in batch)


@pytest.mark.parametrize(
    ("shares", "own_workers", "admitted"),
    [(True, 0, {0, 1, 2, 3}), (False, 0, {0, 1}), (False, 1, {0, 1}), (False, 2, {2}), (True, 2, {0, 1, 2, 3})],
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_only_worker_counts_that_keep_the_epoch_are_admitted(
    shares: bool, own_workers: int, admitted: set[int], make_config: MakeConfig, real_hardware: Hardware
) -> None:
    """What ``autotune`` may emit for a stream; a stream that repeats itself in each worker keeps its own count."""
    users = DataLoader(Images(shares=shares), batch_size=4, num_workers=own_workers)
    task = _task(users)
    space = Candidates.of(facts_of(task), real_hardware, Limits.of(real_hardware), BatchRules(), Space())
    expected, found = _ids(users), set()
    for workers in range(4):
        settings = space.baseline.replace(batch_size=8, num_workers=workers)
        if space.refusal(settings) is None:
            found.add(workers)
            assert _ids(make_config(settings, of=task, baseline=space.baseline).dataloader()) == expected
    assert found == admitted


@pytest.mark.parametrize("batch", [3, 16, 64])
def test_the_configs_loader_draws_what_the_users_sampler_draws(batch: int, make_config: MakeConfig) -> None:
    """Weighted and distributed samplers, across batch sizes."""
    data = images(30)
    weighted = [
        WeightedRandomSampler([1.0 + i for i in range(30)], 30, generator=torch.Generator().manual_seed(2))
        for _ in range(2)
    ]
    distributed = [DistributedSampler(data, num_replicas=3, rank=1) for _ in range(2)]
    for ours, users in (weighted, distributed):
        config = make_config(Settings(batch_size=batch), of=_task(DataLoader(data, batch_size=4, sampler=ours)))
        drawn = _ids(DataLoader(data, batch_size=4, sampler=users))
        seen = _ids(config.dataloader())
        assert not seen - drawn
        assert drawn.total() - seen.total() <= 1  # a lone row is kept from BatchNorm
