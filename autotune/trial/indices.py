"""Which samples a trial reads: each trial continues where the last one stopped.

A page cache warmed by an earlier trial would make a later one look fast; so all trials share one
permutation of the data and take disjoint parts of it for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

__all__ = ["ContinuedSampler"]


class ContinuedSampler(Sampler[int]):
    """One epoch over all ``samples`` indices, starting at ``offset`` of a fixed order and wrapping around.

    Args:
        samples: Number of samples in the dataset.
        offset: Where in the order to start.
        shuffle: A seeded permutation, or the natural order.
        seed: Seed of the permutation; the caller's generators are not touched.
    """

    def __init__(self, samples: int, *, offset: int, shuffle: bool, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._order = torch.randperm(samples, generator=generator) if shuffle else torch.arange(samples)
        self._offset = offset % samples if samples else 0

    def __iter__(self) -> Iterator[int]:
        order = torch.roll(self._order, -self._offset)
        for part in torch.split(order, 4096):
            yield from part.tolist()

    def __len__(self) -> int:
        return len(self._order)
