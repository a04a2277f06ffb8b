"""How long samples are in a batch, which the collate function may cut off, or take from one of their parts only."""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass

import torch

from autotune.task.batches import batch_tensors
from autotune.task.costs import SampleCosts
from autotune.task.dropped import with_kept
from autotune.task.loader_parts import LoaderParts
from autotune.task.rng import rng_kept
from autotune.task.samples import collated, generator_kept
from autotune.task.scan import read_samples

__all__ = ["SAMPLES_READ", "with_collated"]

SAMPLES_READ = 3
"""By ``with_collated`` at least, and at most a quarter of what was read."""

_MOST_READ = 12
_FOLLOWS = 0.9  # correlation of characters and tokens, and of what else is nearly proportional
_LEAST_TO_CORRELATE = 4


def with_collated(data: LoaderParts, costs: SampleCosts) -> SampleCosts:
    """The costs with ``collated``: sizes in batches, from a few samples that were collated.

    Each is collated with its like, so that nothing is padded. For each tensor whose size varies, that measure of the
    samples is taken which it equals, up to a constant and to where it is cut off; else one that it nearly follows.

    Args:
        data: Resolved parts.
        costs: Of its samples.

    Returns:
        The costs, with ``kept`` found out, too.
    """
    costs = with_kept(data, costs)
    if costs.collated is not None or not costs.varying or costs.seen < 2:
        return costs
    rows, shapes = _collated_shapes(data, costs, _probes(costs))
    if len(rows) < 2:
        return costs
    measures = {name: costs.sizes[:, costs.measures.index(name)].double() for name in costs.varying if name != "bytes"}
    found = [_followed(sizes, measures, torch.tensor(rows)) for sizes in _varying(shapes)]
    known = [one for one in found if one is not None]
    if not known or 2 * len(known) < len(found):
        return costs
    main = max(known, key=lambda one: float(one.elements.amax() - one.elements.amin()))
    total = torch.stack([one.elements for one in known]).sum(dim=0)
    dims = max((_varying_dims(sizes) for sizes in _varying(shapes)), default=1)
    return dataclasses.replace(costs, collated=torch.stack([total, main.length], dim=1), collated_dims=dims)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _InBatch:
    """All samples in one tensor of a batch; float64, (seen,)."""

    length: torch.Tensor
    elements: torch.Tensor


def _probes(costs: SampleCosts) -> list[int]:
    """Rows of samples that differ as much as possible, in all and by each measure; the most telling first."""
    kept = torch.arange(costs.seen) if costs.kept is None else torch.nonzero(costs.kept).flatten()
    lengths = costs.lengths[kept]
    order = kept[torch.argsort(lengths, stable=True)].tolist()
    rows = [order[0], order[-1], order[len(order) // 2]]
    for name in costs.varying:
        column = costs.sizes[kept, costs.measures.index(name)]
        rows += [int(kept[column.argmax()]), int(kept[column.argmin()])]
    rows[9:] = [order[len(order) * eighth // 8] for eighth in (1, 2, 3, 5, 6, 7)]
    most = min(_MOST_READ, max(SAMPLES_READ, costs.seen // 4))
    return list(dict.fromkeys(rows))[:most]


def _collated_shapes(
    data: LoaderParts, costs: SampleCosts, rows: list[int]
) -> tuple[list[int], list[list[tuple[int, ...]]]]:
    """The rows that make a batch, and the shapes of its tensors."""
    found, shapes = [], []
    with rng_kept(), generator_kept(data):
        try:
            samples = read_samples(data, [int(costs.places[row]) for row in rows])
        except Exception:  # whatever a dataset raises that did not the first time: nothing is known then
            return [], []
        if len(samples) < len(rows):  # a stream of other samples than last time
            return [], []
        for row, sample in zip(rows, samples, strict=True):
            try:
                batch = collated(data, [copy.deepcopy(sample), copy.deepcopy(sample)])
            except Exception:  # of the collate function, or of a copy: this sample says nothing
                continue
            found.append(row)
            shapes.append([tuple(tensor.shape) for tensor in batch_tensors(batch)])
    return found, shapes


def _varying(shapes: list[list[tuple[int, ...]]]) -> list[torch.Tensor]:
    """Of each tensor of varying size: its elements per sample, and its dimensions; float64, (batches, 1 + dims)."""
    if len({tuple(map(len, batch)) for batch in shapes}) > 1:  # not the same tensors: all together
        totals = [sum(int(torch.Size(shape).numel()) for shape in batch) for batch in shapes]
        shapes = [[(total,)] for total in totals]
    found = []
    for at in range(len(shapes[0])):
        dims = torch.tensor([batch[at] for batch in shapes], dtype=torch.float64).reshape(len(shapes), -1)
        elements = dims.prod(dim=1) / 2
        if elements.amax() > elements.amin():
            found.append(torch.cat([elements[:, None], dims], dim=1))
    return found


def _varying_dims(sizes: torch.Tensor) -> int:
    dims = sizes[:, 1:]
    return int((dims.amax(dim=0) > dims.amin(dim=0)).sum())


def _followed(sizes: torch.Tensor, measures: dict[str, torch.Tensor], rows: torch.Tensor) -> _InBatch | None:
    """All samples in the tensor that has these sizes in the batches of ``rows``."""
    exact: list[tuple[float, _InBatch]] = []
    for at in range(sizes.shape[1]):
        target, each = sizes[:, at], sizes[:, 0] / sizes[:, at]
        if target.amax() == target.amin() or not bool((each == each[0]).all()):
            continue
        for measure in measures.values():
            least = measure[rows].argmin()
            more, most = target[least] - measure[rows][least], target.amax()
            if torch.equal((measure[rows] + more).clamp(max=float(most)), target):
                length = (measure + more).clamp(min=0.0, max=float(most))
                exact.append((abs(float(more)), _InBatch(length=length, elements=length * each[0])))
    if exact:
        return min(exact, key=lambda one: one[0])[1]
    return _nearly_followed(sizes[:, 0], measures, rows)


def _nearly_followed(target: torch.Tensor, measures: dict[str, torch.Tensor], rows: torch.Tensor) -> _InBatch | None:
    if len(rows) < _LEAST_TO_CORRELATE:
        return None
    by_name = {
        name: float(torch.corrcoef(torch.stack([values[rows], target]))[0, 1]) for name, values in measures.items()
    }
    name = max(by_name, key=lambda name: -1.0 if math.isnan(by_name[name]) else by_name[name])  # NaN: all alike
    if not by_name[name] >= _FOLLOWS:
        return None
    elements = _interpolated(measures[name], measures[name][rows], target)
    return _InBatch(length=elements, elements=elements)


def _interpolated(values: torch.Tensor, known: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Piecewise linear through the known pairs (means where there are several), constant beyond them."""
    at, inverse = torch.unique(known, return_inverse=True)
    means: torch.Tensor = torch.zeros_like(at).index_add_(0, inverse, target) / torch.bincount(inverse)
    right = torch.searchsorted(at, values).clamp(1, len(at) - 1)
    share = ((values - at[right - 1]) / (at[right] - at[right - 1])).clamp(0, 1)
    found: torch.Tensor = means[right - 1] + share * (means[right] - means[right - 1])
    return found
