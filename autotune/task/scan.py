"""Reads samples for what they cost: all of them where that is quick, else as many as the time allows, spread out."""

from __future__ import annotations

import math
import operator
import random
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset

from autotune.task.costs import SampleCosts, sample_sizes
from autotune.task.dataset import length
from autotune.task.loader_parts import LoaderParts
from autotune.task.rng import rng_kept
from autotune.task.samples import collated, generator_kept
from autotune.task.structure import SCALARS, children

__all__ = ["drawn_indices", "may_differ", "read_samples", "scan_costs", "worst_batch"]

_EQUAL = 64  # samples spread over the data that are all alike: looking on is likely to be in vain
_EQUAL_S = 1.0  # which is all that is spent on it then; what is quick to read is read in full all the same
_STREAM_SHARE = 0.2  # of the time: a stream is read again up to the costliest samples for every batch
_AROUND_SHARE = (
    0.85  # of the time, after which the neighbours of the costliest sample are read: long ones may come in rows
)
_KEYS_SHARE = 0.1  # of the time, to draw the keys of a sampler whose keys are no numbers
_MOST_KEYS = 1_000_000  # drawn of these: a sampler may have no end
_GOLDEN = (math.sqrt(5) - 1) / 2


def scan_costs(
    data: LoaderParts,
    *,
    budget_s: float,
    equal_s: float = _EQUAL_S,
    reserve: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> SampleCosts | None:
    """What the samples cost, read one by one in this process; random generators are put back.

    Args:
        data: Resolved parts.
        budget_s: Longest it may take, up to the one sample that is being read.
        equal_s: The same, as long as all samples are alike.
        reserve: Time that is left over, in samples that could be read in it.
        clock: Seconds, monotonic.

    Returns:
        The costs. None where batches cannot differ and nothing has to be read: the batches are the user's own, the
        dataset is a ``TensorDataset``, or torch's own collate function stacks samples that hold no text.
    """
    if _batches_alike(data):
        return None
    with rng_kept(), generator_kept(data):
        scan = _Scan(clock, budget_s * (_STREAM_SHARE if data.iterable else 1.0), equal_s, reserve)
        if data.iterable:
            return scan.stream(data)
        drawn, all_drawn = _drawn(data, until=_Deadline(clock, _KEYS_SHARE * budget_s))
        return scan.by_index(data, drawn, all_drawn)


def may_differ(data: LoaderParts, batch: Any) -> bool:
    """Whether batches may differ in size, as far as one can tell without reading more samples.

    Args:
        data: Resolved parts.
        batch: One of its batches.
    """
    return not _batches_alike(data) and (data.collate_fn is not None or _holds_text(batch))


def worst_batch(data: LoaderParts, places: list[int]) -> Any:
    """A batch of these samples, made as the loader makes it.

    Args:
        data: Resolved parts.
        places: As of ``SampleCosts.worst``.

    Returns:
        The collated batch.

    Raises:
        TaskError: They do not make a batch.
    """
    with rng_kept(), generator_kept(data):
        return collated(data, read_samples(data, places))


def drawn_indices(data: LoaderParts, places: list[int]) -> list[Any]:
    """What the sampler draws for these samples.

    Args:
        data: Resolved parts.
        places: As of ``SampleCosts``.
    """
    with rng_kept(), generator_kept(data):
        drawn, _ = _drawn(data, wanted=max(places, default=0) + 1)
    return [drawn[place] for place in places]


def read_samples(data: LoaderParts, places: list[int]) -> list[Any]:
    """These samples, with the random numbers drawn that were drawn when their costs were taken.

    Args:
        data: Resolved parts.
        places: As of ``SampleCosts``.
    """
    if not data.iterable:
        drawn, _ = _drawn(data, wanted=max(places, default=0) + 1)
        return [_seeded_read(data.dataset, drawn[place], place) for place in places]
    wanted, found = set(places), {}
    _seed(0)
    for place, sample in enumerate(data.dataset):
        if place in wanted:
            found[place] = sample
        if len(found) == len(wanted):
            break
    return [found[place] for place in places if place in found]


class _Scan:
    """Collects costs until the time is up."""

    def __init__(self, clock: Callable[[], float], budget_s: float, equal_s: float, reserve: int) -> None:
        self._clock, self._began = clock, clock()
        self._budget_s, self._equal_s, self._reserve = budget_s, equal_s, reserve
        self._places = array("q")
        self._columns: dict[str, array[int]] = {}
        self._first: dict[str, int] | None = None
        self._differs = False
        self._largest = (0, 0)
        self._unreadable, self._first_error = 0, ""

    def by_index(self, data: LoaderParts, drawn: range | list[Any], all_drawn: bool) -> SampleCosts | None:
        order, read = _spread_out(len(drawn)), set[int]()  # of what was read: a dataset may say that it has 10 ** 12
        while self._time_left():
            near = _around(self._largest[1], len(drawn), read) if self._spent_share() > _AROUND_SHARE else iter(())
            place = next(near, None)
            place = next(order, None) if place is None else place
            if place is None:
                break
            if place not in read:
                read.add(place)
                if not self._take(data, drawn[place], place):
                    return None
        return self._costs(len(drawn) if all_drawn else None)

    def stream(self, data: LoaderParts) -> SampleCosts | None:
        _seed(0)
        for place, sample in enumerate(data.dataset):
            if data.collate_fn is None and not _holds_text(sample):
                return None
            self._note(place, sample_sizes(sample))
            if not self._time_left():
                return self._costs(None)
        return self._costs(len(self._places))

    def _take(self, data: LoaderParts, index: Any, place: int) -> bool:
        """Reads one sample; False where there is nothing to find out."""
        try:
            sample = _seeded_read(data.dataset, index, place)
        except Exception as error:  # whatever a dataset raises; it is said, and the loader will meet it, too
            self._first_error = self._first_error or f"{type(error).__name__}: {error}".rstrip(".")
            self._unreadable += 1
            return True
        if data.collate_fn is None and not _holds_text(sample):
            return False
        self._note(place, sample_sizes(sample))
        return True

    def _note(self, place: int, sizes: dict[str, int]) -> None:
        seen = len(self._places)
        for name in sizes.keys() - self._columns.keys():
            self._columns[name] = array("q", bytes(8 * seen))
        for name, column in self._columns.items():
            column.append(sizes.get(name, 0))
        self._places.append(place)
        self._first = self._first or sizes
        self._differs = self._differs or sizes != self._first
        self._largest = max(self._largest, (sizes["bytes"], place))

    def _time_left(self) -> bool:
        """Whether one more sample is likely to be read in time."""
        seen = len(self._places) + self._unreadable
        if not seen:
            return True
        budget_s = self._budget_s
        if not self._differs and seen >= _EQUAL:
            budget_s = min(budget_s, self._equal_s)
        spent_s = self._clock() - self._began
        return spent_s * (1 + (1 + self._reserve) / seen) <= budget_s

    def _spent_share(self) -> float:
        return (self._clock() - self._began) / self._budget_s if self._budget_s > 0 else 1.0

    def _costs(self, samples: int | None) -> SampleCosts:
        columns = [torch.tensor(column, dtype=torch.int64) for column in self._columns.values()]
        return SampleCosts(
            places=torch.tensor(self._places, dtype=torch.int64),
            sizes=torch.stack(columns, dim=1) if columns else torch.zeros(0, 0, dtype=torch.int64),
            measures=tuple(self._columns),
            samples=samples,
            seconds=self._clock() - self._began,
            unreadable=self._unreadable,
            first_error=self._first_error,
        )


def _batches_alike(data: LoaderParts) -> bool:
    return data.batches_kept is not None or type(data.dataset) is TensorDataset


class _Deadline:
    """Says when the time for something is up."""

    def __init__(self, clock: Callable[[], float], budget_s: float) -> None:
        self._clock, self._end = clock, clock() + budget_s

    def __call__(self) -> bool:
        return self._clock() > self._end


def _drawn(
    data: LoaderParts, *, wanted: int | None = None, until: Callable[[], bool] = lambda: False
) -> tuple[range | list[Any], bool]:
    """The indices that the user's sampler can draw: a subset's own, else all, or keys that are no numbers.

    Args:
        data: Resolved parts.
        wanted: So many of the keys are enough; None: all.
        until: Whether the time is up.

    Returns:
        Them, and whether these are all: a sampler of keys may have no end.
    """
    everything = range(length(data.dataset) or 0)
    if data.sampler is None:
        return everything, True
    _seed(0)  # keys in a random order are in the same one each time
    fixed = data.sampler if isinstance(data.sampler, (list, tuple)) else getattr(data.sampler, "indices", None)
    try:
        operator.index(next(iter(data.sampler)))
        return (everything if fixed is None else list(dict.fromkeys(map(operator.index, fixed)))), True
    except TypeError:  # no numbers
        return _keys(data.sampler, wanted, until)


def _keys(sampler: Any, wanted: int | None, until: Callable[[], bool]) -> tuple[list[Any], bool]:
    _seed(0)  # as a shorter look at it draws them
    keys: dict[Any, None] = {}
    for count, key in enumerate(sampler):
        if count >= _MOST_KEYS or len(keys) == wanted or until():
            return list(keys), False
        keys[key] = None
    return list(keys), True


def _spread_out(count: int) -> Iterator[int]:
    """All of range(count): both ends first, then so that every beginning of the order is spread over the whole.

    Source: the additive recurrence of the golden ratio, whose points are the most evenly spread (Knuth, The Art of
    Computer Programming 3, 6.4); in whole numbers, with a step that shares no factor with ``count``.
    """
    if not count:
        return
    yield from dict.fromkeys((0, count - 1))
    step = max(1, round(_GOLDEN * count))
    while math.gcd(step, count) != 1:
        step += 1
    place = 0
    for _ in range(count):
        place = (place + step) % count
        if 0 < place < count - 1:
            yield place


def _around(place: int, count: int, read: set[int]) -> Iterator[int]:
    """Places of ``count`` not read yet, the nearest to ``place`` first."""
    for distance in range(1, min(count, 64)):
        for near in (place - distance, place + distance):
            if 0 <= near < count and near not in read:
                yield near


def _seeded_read(dataset: Any, index: Any, seed: int) -> Any:
    """Random augmentation draws the same each time this sample is read."""
    _seed(seed)
    fetch = getattr(dataset, "__getitems__", None)  # as torch's own loader does
    return fetch([index])[0] if callable(fetch) else dataset[index]


def _seed(number: int) -> None:
    """The CPU's generators only: seeding torch as a whole would seed accelerators, too."""
    random.seed(number)
    torch.default_generator.manual_seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % 2**32)


def _holds_text(value: Any, depth: int = 3) -> bool:
    if isinstance(value, SCALARS):
        return isinstance(value, (str, bytes))
    return depth > 0 and any(_holds_text(part, depth - 1) for part in children(value))
