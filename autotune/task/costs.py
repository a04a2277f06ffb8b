"""What each sample costs (lengths, objects, bytes), and from that the worst batches a loader can yield.

A batch of the first samples says little about an epoch: one long sample makes all others in its batch as long where
batches are padded, and many objects may meet in one batch. So the samples are read once, within a share of the time,
and the batch sizes are verified on the costliest of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autotune.task.structure import DEPTH, SCALARS, children

__all__ = ["SampleCosts", "sample_sizes"]

_BYTES = "bytes"
_NUMBER_BYTES = 8
_LOOKED_AT = 64  # items of a list, its two ends where it is longer: such lists hold numbers throughout, or none
_MOST_SINGLE = 3  # worst batches by one measure alone; each takes a step of its own


def sample_sizes(sample: Any) -> dict[str, int]:
    """How large one sample is, by its parts.

    Args:
        sample: What a dataset yields.

    Returns:
        Elements of each tensor, and each of its dimensions where it has several; length of each text and of each list
        of numbers; number of objects in each list of others, whose sizes are added up. ``bytes`` is the sum of all.
    """
    sizes = {_BYTES: 0}
    if isinstance(sample, Mapping):
        parts = [(str(key), part) for key, part in sample.items()]
    elif isinstance(sample, (list, tuple)) and not _plain_numbers(sample):
        parts = [(str(place), part) for place, part in enumerate(sample)]
    else:
        parts = [("sample", sample)]
    for name, part in parts:
        _add(sizes, name, part, DEPTH)
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleCosts:
    """The sizes of the samples that were read."""

    places: torch.Tensor
    """Of these samples among those that the sampler can draw (all, usually), or in the stream; int64, (seen,)."""
    sizes: torch.Tensor
    """int64, (seen, measures)."""
    measures: tuple[str, ...]
    """What is measured, as ``sample_sizes`` names it."""
    samples: int | None
    """How many there are; None for a stream that was not read to its end."""
    seconds: float = 0.0
    """What reading them took."""
    unreadable: int = 0
    """Samples at which the dataset raised."""
    first_error: str = ""
    """The first such error."""
    kept: torch.Tensor | None = None
    """Which of them the collate function does not drop, bool, (seen,); None: not looked at."""
    collated: torch.Tensor | None = None
    """Of each what the collate function makes of it, float64, (seen, 2): elements in tensors whose size varies, and
    its length in the one that varies most; None: not looked at, or not to be told from its measures."""

    collated_dims: int = 1
    """Dimensions in which the tensor that varies most differs from batch to batch."""

    @property
    def seen(self) -> int:
        """Samples that were read."""
        return len(self.places)

    @property
    def whole(self) -> bool:
        """Whether no sample is left that was not looked at."""
        return self.samples is not None and self.seen + self.unreadable >= self.samples

    @property
    def used(self) -> SampleCosts:
        """Of the samples that get into batches: those that the collate function drops left out."""
        if self.kept is None or bool(self.kept.all()) or not bool(self.kept.any()):
            return self
        share, samples = float(self.kept.double().mean()), self.samples
        if samples is not None:
            samples = int(self.kept.sum()) + self.unreadable if self.whole else max(1, round(share * samples))
        return dataclasses.replace(self._at(self.kept), samples=samples, kept=None)

    def without(self, places: list[int]) -> SampleCosts:
        """Of the samples at other places.

        Args:
            places: Those to leave out.
        """
        left = ~torch.isin(self.places, torch.tensor(places, dtype=torch.int64))
        samples = None if self.samples is None else self.samples - int((~left).sum())
        return dataclasses.replace(self._at(left), samples=samples)

    @property
    def sized(self) -> torch.Tensor:
        """Which of them have any size: None has none; bool, (seen,)."""
        return self.sizes[:, self.measures.index(_BYTES)] > 0 if self.seen else torch.zeros(0, dtype=torch.bool)

    @property
    def varying(self) -> tuple[str, ...]:
        """The measures in which samples differ."""
        spread = self._spread
        return tuple(name for name, by in zip(self.measures, spread, strict=True) if by)

    @property
    def lengths(self) -> torch.Tensor:
        """What of each sample varies, in elements (bytes and single dimensions left out); float64, (seen,).

        As it is in a batch, where that is known.
        """
        if self.collated is not None:
            return self.collated[:, 0]
        names = [name for name in self.varying if name != _BYTES and ".shape" not in name]
        columns = [self.measures.index(name) for name in names or [_BYTES]]
        return self.sizes[:, columns].sum(dim=1).double()

    @property
    def main_lengths(self) -> torch.Tensor:
        """The part of each sample that varies most, in elements (tokens, where it is text); float64, (seen,).

        As it is in a batch, where that is known.
        """
        if self.collated is not None:
            return self.collated[:, 1]
        names = [name for name in self.varying if name != _BYTES and ".shape" not in name]
        columns = self.sizes[:, [self.measures.index(name) for name in names or [_BYTES]]]
        most = int((columns.amax(dim=0) - columns.amin(dim=0)).argmax())
        return columns[:, most].double()

    @property
    def shapes(self) -> torch.Tensor | None:
        """Varying dimensions of the samples' one part that has several of them, int64, (seen, dims); else None."""
        parts: dict[str, list[int]] = {}
        for name in self.varying:
            part, dim, _ = name.partition(".shape[")
            if dim:
                parts.setdefault(part, []).append(self.measures.index(name))
        several = [columns for columns in parts.values() if len(columns) > 1]
        return self.sizes[:, several[0]] if len(several) == 1 else None

    def worst(self, batch_size: int) -> list[list[int]]:
        """The costliest batches of distinct samples: what a padding or concatenating collate function makes most of.

        Args:
            batch_size: Samples per batch.

        Returns:
            Places by batch: one with the largest sample of each measure, filled up with those that are large in all
            of them, and one for each of the measures that differ most; equal ones once, none where all samples are
            alike. Where not all samples were seen, each stands for as many as there are of it by estimate.
        """
        spread = torch.tensor(self._spread)
        varying = [int(at) for at in torch.argsort(spread, descending=True) if spread[at] > 0]
        if not varying:
            return []
        share = self.sizes[:, varying].double()
        overall = torch.argsort((share / share.amax(dim=0).clamp(min=1)).sum(dim=1), descending=True, stable=True)
        orders = [
            overall[torch.argsort(share[overall, at], descending=True, stable=True)] for at in range(len(varying))
        ]
        tops = list(dict.fromkeys(int(order[0]) for order in orders))
        mixed = torch.tensor(list(dict.fromkeys([*tops, *overall[:batch_size].tolist()])))
        shapes = self.shapes  # the highest beside the widest: together they may pad to more than any one is large
        sides = [] if shapes is None else list(dict.fromkeys([*shapes.argmax(dim=0).tolist(), *mixed.tolist()]))
        padded = [torch.tensor(sides)] if sides else []
        chosen: dict[tuple[int, ...], list[int]] = {}
        for order in (mixed, *padded, *orders[: _MOST_SINGLE + 1]):
            batch = self._filled(order, batch_size)
            chosen.setdefault(tuple(sorted(batch)), batch)
        return list(chosen.values())[: _MOST_SINGLE + 1 + len(padded)]

    def sentence(self) -> str | None:
        """What people should know where the worst batch may not be among those that were run; None where it is."""
        said = []
        if not self.whole:
            of = f"{self.samples:,}" if self.samples is not None else "a stream of unknown length"
            said.append(
                f"{self.seen:,} samples of {of} were read in the time there was for it ({self.seconds:.1f} s), spread "
                "over the data: a larger one among the others may need more memory than any batch that was run."
            )
        if self.unreadable:
            said.append(f"The dataset raised at {self.unreadable:,} of its samples, first: {self.first_error}.")
        return " ".join(said) or None

    def to_tensors(self) -> dict[str, Any]:
        """Tensors, numbers and texts, as ``torch.load(weights_only=True)`` reads them."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}

    def _at(self, rows: torch.Tensor) -> SampleCosts:
        return dataclasses.replace(
            self,
            places=self.places[rows],
            sizes=self.sizes[rows],
            kept=None if self.kept is None else self.kept[rows],
            collated=None if self.collated is None else self.collated[rows],
        )

    @property
    def _spread(self) -> list[int]:
        return [] if not self.seen else (self.sizes.amax(dim=0) - self.sizes.amin(dim=0)).tolist()

    def _filled(self, order: torch.Tensor, batch_size: int) -> list[int]:
        """The first of ``order``, each as often as samples like it are to be expected in all of the data."""
        unread = self.samples is not None and not self.whole and self.seen < self.samples
        each = (self.samples or 0) / self.seen if unread else 1.0
        ranks = [min(int(rank / each), len(order) - 1) for rank in range(batch_size)]
        if self.samples is None:  # of a stream nothing is known beyond what was read
            ranks = [rank % len(order) for rank in range(batch_size)]
        elif not unread:
            ranks = list(range(min(batch_size, len(order))))
        return [int(self.places[order[rank]]) for rank in ranks]


def _add(sizes: dict[str, int], name: str, value: Any, depth: int) -> None:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        elements = 1
        for length in shape:
            elements *= int(length)
        _count(sizes, name, elements, int(getattr(value, "nbytes", _NUMBER_BYTES * elements)))
        for dim, length in enumerate(shape if len(shape) > 1 else ()):
            where = f"{name}.shape[{dim}]"
            sizes[where] = max(sizes.get(where, 0), int(length))
    elif isinstance(value, (str, bytes)):
        _count(sizes, name, len(value), len(value))
    elif isinstance(value, SCALARS) or not depth:
        return
    elif isinstance(value, (list, tuple)) and _plain_numbers(value):
        _count(sizes, name, len(value), _NUMBER_BYTES * len(value))
    elif isinstance(value, Mapping):
        for key, part in value.items():
            _add(sizes, f"{name}.{key}", part, depth - 1)
    elif isinstance(value, list):
        _count(sizes, f"{name} objects", len(value), 0)
        for part in value:
            _add(sizes, f"{name}[]", part, depth - 1)
    else:
        for place, part in enumerate(children(value)):
            _add(sizes, f"{name}.{place}", part, depth - 1)


def _count(sizes: dict[str, int], name: str, elements: int, nbytes: int) -> None:
    sizes[name] = sizes.get(name, 0) + elements
    sizes[_BYTES] += nbytes


def _plain_numbers(value: list[Any] | tuple[Any, ...]) -> bool:
    looked_at = value if len(value) <= _LOOKED_AT else (*value[: _LOOKED_AT // 2], *value[-_LOOKED_AT // 2 :])
    return len(value) > 0 and all(isinstance(item, (bool, int, float, complex)) for item in looked_at)
