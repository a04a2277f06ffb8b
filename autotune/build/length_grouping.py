"""Batches of samples of similar length: less padding, every sample exactly as often as before, another order."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized

import torch
from torch.utils.data import Sampler

__all__ = ["ROUND", "LengthGroupedBatchSampler"]

_BATCHES = 50
"""Sorted together: padding falls by most of what sorting everything would save, and samples still meet by chance."""
ROUND = 5
"""Batches in which all lengths occur: one of each fifth of a bucket, so that neither a group of accumulated batches nor
a measured window holds only short or only long ones."""


class LengthGroupedBatchSampler(Sampler[list[int]]):
    """Groups what another sampler draws into batches of similar length, and shuffles the order of the batches.

    Each pass takes the indices of ``sampler`` in buckets of 50 batches, sorts each bucket by length, cuts it into
    batches and shuffles these: in rounds of five, one at random of each fifth of the lengths, in random order. So every
    index comes as often as the sampler draws it, in each epoch beside other samples, and short and long batches follow
    each other. An incomplete batch is the epoch's last, of samples of any length, so that none is left out for its
    length where it is dropped.

    Args:
        sampler: Indices of one epoch, in random order; read anew for each pass.
        lengths: Of every sample of the dataset, by index.
        batch_size: Samples per batch.
        drop_last: Leave out an incomplete last batch.
        generator: Shuffles the batches; None: a new one for each pass, seeded by torch's global generator, as
            ``RandomSampler`` does it.
        batches: Batches per bucket.

    Source: the sampler that sorts buckets of a random permutation is that of Hugging Face transformers
    (``trainer_pt_utils.LengthGroupedSampler``); it shuffles no batches and puts the longest first.
    """

    def __init__(
        self,
        sampler: Iterable[int],
        lengths: torch.Tensor,
        batch_size: int,
        *,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        batches: int = _BATCHES,
    ) -> None:
        self.sampler, self.lengths = sampler, lengths
        self.batch_size, self.drop_last = batch_size, drop_last
        self.generator = generator
        self._bucket = batches * batch_size

    def __iter__(self) -> Iterator[list[int]]:
        generator = self.generator or _seeded_by_torch()
        indices = iter(self.sampler)
        while bucket := list(itertools.islice(indices, self._bucket)):
            whole = len(bucket) // self.batch_size * self.batch_size
            bucket, rest = bucket[:whole], bucket[whole:]
            yield from self._shuffled(bucket, generator)
            if rest and not self.drop_last:
                yield rest

    def __len__(self) -> int:
        if not isinstance(self.sampler, Sized):
            raise TypeError(f"the sampler ({type(self.sampler).__name__}) has no length")
        samples = len(self.sampler)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def _shuffled(self, bucket: list[int], generator: torch.Generator) -> Iterator[list[int]]:
        lengths = self.lengths[torch.tensor(bucket, dtype=torch.int64)]
        order = torch.argsort(lengths, stable=True).reshape(-1, self.batch_size)
        for row in _mixed(len(order), generator):
            yield [bucket[place] for place in order[row].tolist()]


def _mixed(count: int, generator: torch.Generator) -> Iterator[int]:
    """All of range(count) in rounds, each of one place at random out of each fifth, in random order."""
    fifths = [part[torch.randperm(len(part), generator=generator)] for part in torch.arange(count).tensor_split(ROUND)]
    for at in range(len(fifths[0])):
        places = torch.stack([part[at] for part in fifths if at < len(part)])
        yield from places[torch.randperm(len(places), generator=generator)].tolist()


def _seeded_by_torch() -> torch.Generator:
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    return torch.Generator().manual_seed(seed)
