"""How long each sample of a dataset is, by its index, for batches of samples of similar length."""

from __future__ import annotations

import math

import torch

from autotune.task.collated_lengths import with_collated
from autotune.task.costs import SampleCosts
from autotune.task.dataset import length
from autotune.task.loader_parts import LoaderParts
from autotune.task.scan import drawn_indices, scan_costs

__all__ = ["lengths_by_index", "sample_lengths"]

_GOLDEN = (math.sqrt(5) - 1) / 2


def sample_lengths(data: LoaderParts) -> torch.Tensor:
    """What of each sample varies, for every sample of a map-style dataset; float64, (samples,).

    Args:
        data: Resolved parts.
    """
    costs = scan_costs(data, budget_s=math.inf, equal_s=math.inf)
    return lengths_by_index(data, None if costs is None else with_collated(data, costs))


def lengths_by_index(data: LoaderParts, costs: SampleCosts | None) -> torch.Tensor:
    """The lengths in the order of the dataset; float64, (samples,).

    Args:
        data: Resolved parts.
        costs: Of its samples.

    Returns:
        0 for samples that were not read. Samples that the collate function drops have lengths of others: sorted by
        their own they would meet in batches of which nothing is left.
    """
    lengths = torch.zeros(length(data.dataset) or 0, dtype=torch.float64)
    if costs is not None and costs.varying:
        lengths[torch.tensor(drawn_indices(data, costs.places.tolist()))] = _spread_dropped(costs)
    return lengths


def _spread_dropped(costs: SampleCosts) -> torch.Tensor:
    lengths = costs.lengths
    if costs.kept is None or not bool(costs.kept.any()):
        return lengths
    others = torch.sort(lengths[costs.kept]).values
    dropped = torch.nonzero(~costs.kept).flatten()
    # multiples of the golden ratio are spread evenly from any beginning, so neighbours are far apart
    ranks = (torch.arange(len(dropped), dtype=torch.float64) * _GOLDEN % 1 * len(others)).long()
    return lengths.index_put((dropped,), others[ranks])
