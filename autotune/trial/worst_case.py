"""The costliest batches a loader can yield, found by reading the samples once, for the probes that verify a size."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from autotune.errors import TaskError
from autotune.measurement import DataCosts, Probe
from autotune.task import LoaderParts
from autotune.task.collated_lengths import with_collated
from autotune.task.costs import SampleCosts
from autotune.task.dropped import is_empty
from autotune.task.lengths import lengths_by_index, sample_lengths
from autotune.task.padding import SAMPLES_READ, pads, share_of_padding
from autotune.task.samples import first_batch
from autotune.task.scan import scan_costs, worst_batch

__all__ = ["WorstCase"]

_SCAN_SHARE = 0.1
"""Of the deadline of the probe that first asks: the samples are read once, and then known to all later probes. A probe
of ``largest_batch`` has half of the time left as its deadline, so this is a twentieth of its time budget."""
_NEXT_LARGEST = 6
"""Batches tried, each of samples beyond twice as many of the largest as the last."""
_NOT_THE_LARGEST = (
    "The largest samples of the data make no batch (the collate function drops or refuses them); the next largest were "
    "run instead."
)


class WorstCase:
    """What the samples cost, read when it is first asked for.

    Args:
        data: Resolved parts.
        clock: Seconds, monotonic.
    """

    def __init__(self, data: LoaderParts, clock: Callable[[], float] = time.perf_counter) -> None:
        self._data, self._clock = data, clock
        self._costs: SampleCosts | None = None
        self._known = False
        self._pads = self._passed_over = False
        self._lengths: torch.Tensor | None = None
        self._file: Path | None = None

    def keep_in(self, file: Path) -> None:
        """Remembers the costs in ``file`` for the next process of this run, or takes them from there."""
        self._file = file
        if file.exists():
            kept = torch.load(file, weights_only=True)
            self._costs, self._pads = (SampleCosts(**kept["costs"]) if kept["costs"] else None), kept["pads"]
            self._known = True

    def batches(self, probe: Probe) -> list[Callable[[], Any]]:
        """Makers of the worst batches of the probe's size; none where all batches are alike."""
        rows = probe.settings.batch_size
        costs = self._scanned(_SCAN_SHARE * probe.deadline_s)
        if costs is None or rows is None:
            return []
        costs = costs.used
        return [partial(self._made, costs, places, rows) for places in costs.worst(rows)]

    def data_costs(self, batch_size: int | None) -> DataCosts | None:
        """What is known of the samples, for people and for the search; None where all are alike, or none was read."""
        costs = None if self._costs is None else self._costs.used
        if costs is None or not costs.varying:
            return None
        return DataCosts(
            seen=costs.seen,
            samples=costs.samples,
            whole=costs.whole,
            mean_length=float(costs.main_lengths.mean()),
            longest=int(costs.main_lengths.max()),
            padding_share=share_of_padding(costs, batch_size) if self._pads and batch_size else None,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know of the reading."""
        said = self._costs.sentence() if self._costs is not None else None
        return tuple(text for text in (said, _NOT_THE_LARGEST if self._passed_over else None) if text is not None)

    def lengths(self, data: LoaderParts) -> torch.Tensor:
        """Of every sample of the dataset, in its order; the samples are read where that was not done yet."""
        if self._lengths is None:
            known = self._costs is not None and self._costs.whole
            self._lengths = lengths_by_index(data, self._costs) if known else sample_lengths(data)
        return self._lengths

    def _made(self, costs: SampleCosts, places: list[int], rows: int) -> Any:
        """A batch of these, else of the next largest that make one: what the collate function refuses says nothing."""
        for doubling in range(_NEXT_LARGEST):
            try:
                batch = worst_batch(self._data, places)
            except TaskError:  # it raised; if it does so for all, the last batch raises, too
                batch = None
            if not is_empty(batch):
                return batch
            self._passed_over = True
            costs = costs.without(costs.worst(rows << doubling)[0])
            if not costs.varying:
                break
            places = costs.worst(rows)[0]
        return first_batch(self._data, rows=rows)

    def _scanned(self, budget_s: float) -> SampleCosts | None:
        if not self._known:
            costs = scan_costs(self._data, budget_s=budget_s, reserve=SAMPLES_READ, clock=self._clock)
            self._costs = None if costs is None else with_collated(self._data, costs)
            self._pads = self._costs is not None and pads(self._data, self._costs)
            self._known = True
            if self._file is not None:
                torch.save({"costs": self._costs and self._costs.to_tensors(), "pads": self._pads}, self._file)
        return self._costs
