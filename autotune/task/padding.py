"""How much of a batch is padding: whether the collate function pads, and the share it wastes."""

from __future__ import annotations

import copy
from typing import Any

import torch

from autotune.task import collated_lengths, dropped
from autotune.task.batches import batch_tensors
from autotune.task.collated_lengths import with_collated
from autotune.task.costs import SampleCosts
from autotune.task.loader_parts import LoaderParts
from autotune.task.rng import rng_kept
from autotune.task.samples import collated, generator_kept
from autotune.task.scan import read_samples

__all__ = ["SAMPLES_READ", "padding_share", "pads", "share_of_padding"]

SAMPLES_READ = 2 + dropped.SAMPLES_READ + collated_lengths.SAMPLES_READ
"""By ``pads``."""

_DRAWS = 1000  # of batches, where no formula is at hand: good to about one percent
_LIKE_THE_LONGEST = 0.5  # a mixed batch is nearer to one of long samples than to the mean of a short and a long one


def pads(data: LoaderParts, costs: SampleCosts) -> bool:
    """Whether the collate function makes the samples of a batch as long as its longest.

    Found out on a short and a long sample, each paired with its like and with the other: the mixed pair has, per row,
    as many elements as the long ones where it pads, the mean of both kinds where samples are joined or listed, and no
    fewer than any other where everything is padded to one length.

    Args:
        data: Resolved parts.
        costs: Of its samples.

    Returns:
        False, too, where they make no batches, or none whose sizes follow from theirs: nothing is known then.
    """
    costs = with_collated(data, costs).used
    if costs.collated is None or costs.seen < 2:
        return False
    order = torch.argsort(costs.lengths, stable=True)
    places = [int(costs.places[order[at]]) for at in (0, -1)]
    try:
        with rng_kept(), generator_kept(data):
            short, long = read_samples(data, places)
        short_size, mixed_size, long_size = (
            _elements(data, pair) for pair in ([short, short], [short, long], [long, long])
        )
    except Exception:  # of the collate function, or of a dataset read again: whether it pads cannot be seen
        return False
    mean = (short_size + long_size) / 2
    return long_size > mean and mixed_size - mean > _LIKE_THE_LONGEST * (long_size - mean)


def share_of_padding(costs: SampleCosts, batch_size: int) -> float | None:
    """Share of padded elements in batches drawn at random, of samples that are padded to the largest in each dimension.

    Args:
        costs: Of the samples that get into batches.
        batch_size: Samples per batch.

    Returns:
        The share; None where samples differ in several dimensions and it is not known in which.
    """
    if costs.collated_dims == 1:
        return padding_share(costs.lengths, batch_size)
    shapes = costs.shapes
    if shapes is None or shapes.shape[1] != costs.collated_dims:
        return None
    drawn = torch.randint(len(shapes), (_DRAWS, batch_size), generator=torch.Generator().manual_seed(0))
    padded = shapes[drawn].amax(dim=1).double().prod(dim=1).mean()
    return 1 - float(shapes.double().prod(dim=1).mean() / padded)


def padding_share(lengths: torch.Tensor, batch_size: int) -> float:
    """Share of padded elements in batches of samples drawn at random, each as long as its longest sample.

    Args:
        lengths: Of the samples, elements, (samples,).
        batch_size: Samples per batch.

    Returns:
        1 - mean length / expected length of the longest of a batch.

    Source: the distribution of the largest of ``batch_size`` draws from the empirical distribution F of the lengths
    is F ** batch_size (David and Nagaraja, Order Statistics), drawing without replacement being close to that.
    """
    ordered = torch.sort(lengths.double()).values
    ranks = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    longest = float((ordered * (ranks**batch_size).diff()).sum())
    return 1 - float(ordered.mean()) / longest if longest > 0 else 0.0


def _elements(data: LoaderParts, samples: list[Any]) -> float:
    batch = collated(data, [copy.deepcopy(sample) for sample in samples])
    return sum(tensor.numel() for tensor in batch_tensors(batch)) / len(samples)
