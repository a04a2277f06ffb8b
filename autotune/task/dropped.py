"""Which samples a collate function leaves out of its batches: what is None, too short or too long."""

from __future__ import annotations

import dataclasses
from collections.abc import Sized
from typing import Any

import torch

from autotune.errors import TaskError
from autotune.task.batches import batch_tensors
from autotune.task.costs import SampleCosts
from autotune.task.loader_parts import LoaderParts
from autotune.task.rng import rng_kept
from autotune.task.samples import collated, generator_kept
from autotune.task.scan import read_samples

__all__ = ["SAMPLES_READ", "is_empty", "with_kept"]

SAMPLES_READ = 2
"""By ``with_kept`` where nothing is dropped."""

_TRIED = 32  # each time that the bounds of what is dropped are narrowed down


def with_kept(data: LoaderParts, costs: SampleCosts) -> SampleCosts:
    """The costs with ``kept``: samples that make no batch alone while others do are dropped, or refused.

    Lengths are taken to decide: the shortest and the longest are tried, and where one of them is dropped, others
    between them, up to the bounds of what is kept.

    Args:
        data: Resolved parts.
        costs: Of its samples.

    Returns:
        The costs; all are kept where nothing can be told.
    """
    if costs.kept is not None:
        return costs
    kept = torch.ones(costs.seen, dtype=torch.bool)
    if costs.varying:
        sized = costs.sized
        kept = _within(data, costs, kept, torch.nonzero(sized).flatten())
        empty = torch.nonzero(~sized).flatten()[:1]
        if len(empty) and not _make_batches(data, costs, empty)[0]:
            kept &= sized
    return dataclasses.replace(costs, kept=kept)


def _within(data: LoaderParts, costs: SampleCosts, kept: torch.Tensor, sized: torch.Tensor) -> torch.Tensor:
    order = sized[torch.argsort(costs.lengths[sized], stable=True)]
    count = len(order)
    ranks = sorted({0, count - 1}) if count else []
    tried = dict(zip(ranks, _make_batches(data, costs, order[ranks]), strict=True))
    if all(tried.values()):
        return kept
    for gaps in (_everything, _beyond_bounds):
        ranks = sorted(gaps(tried, count) - tried.keys())
        tried |= zip(ranks, _make_batches(data, costs, order[ranks]), strict=True)
        if not any(tried.values()):  # batches of one may be what it cannot make
            return kept
    low, high = _bounds(tried)
    kept[order[:low]] = False
    kept[order[high + 1 :]] = False
    return kept


def _everything(tried: dict[int, bool], count: int) -> set[int]:
    return _spread(0, count - 1, _TRIED)


def _beyond_bounds(tried: dict[int, bool], count: int) -> set[int]:
    """In the gaps beyond the outermost that are kept."""
    low, high = _bounds(tried)
    below = max((rank for rank in tried if rank < low), default=low)
    above = min((rank for rank in tried if rank > high), default=high)
    return _spread(below, low, _TRIED // 2) | _spread(high, above, _TRIED // 2)


def _spread(start: int, end: int, count: int) -> set[int]:
    return {start + (end - start) * at // (count - 1) for at in range(count)}


def _bounds(tried: dict[int, bool]) -> tuple[int, int]:
    fine = [rank for rank, makes_batch in tried.items() if makes_batch]
    return min(fine), max(fine)


def _make_batches(data: LoaderParts, costs: SampleCosts, rows: torch.Tensor) -> list[bool]:
    """Whether each of these samples makes a batch alone."""
    places = [int(place) for place in costs.places[rows]]
    with rng_kept(), generator_kept(data):
        try:
            samples = read_samples(data, places)
        except Exception:  # whatever a dataset raises that did not the first time: nothing is known then
            return [True] * len(places)
        if len(samples) < len(places):  # a stream of other samples than last time
            return [True] * len(places)
        return [_makes_batch(data, sample) for sample in samples]


def _makes_batch(data: LoaderParts, sample: Any) -> bool:
    try:
        return not is_empty(collated(data, [sample]))
    except TaskError:  # the collate function raised, which is the answer
        return False


def is_empty(batch: Any) -> bool:
    """Whether a collate function left nothing of its samples.

    Args:
        batch: What it returned.
    """
    tensors = batch_tensors(batch)
    if tensors:
        return not any(tensor.numel() or (tensor.ndim and len(tensor)) for tensor in tensors)  # rows may be empty
    return batch is None or (isinstance(batch, Sized) and not len(batch))
