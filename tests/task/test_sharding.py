"""Whether several workers may read a stream: shown by real workers."""

from __future__ import annotations

import itertools
import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from autotune.errors import TaskError
from autotune.task import LoaderParts
from autotune.task.sharding import one_worker_only


class Numbers(IterableDataset[Any]):
    """Numbers up to ``rows``, shared among workers in the way ``how`` says."""

    def __init__(self, rows: int, how: str) -> None:
        self.rows, self.how = rows, how
        self.first, self.step = 0, 1

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        numbers = list(range(self.first, self.rows, self.step))
        if info is not None and self.how == "round robin":
            numbers = numbers[info.id :: info.num_workers]
        if info is not None and self.how == "blocks":
            share = -(-self.rows // info.num_workers)
            numbers = numbers[info.id * share : (info.id + 1) * share]
        if info is not None and self.how == "first worker only":
            numbers = numbers if info.id == 0 else []
        if info is not None and self.how == "overlapping":
            numbers = numbers[info.id :]
        if info is not None and self.how == "raises":
            raise RuntimeError("made on purpose")
        if self.how == "shuffled":
            random.shuffle(numbers)
        return ({"x": torch.tensor([number, 1]), "name": str(number)} for number in numbers)


def _step_by_worker(worker: int) -> None:
    info = get_worker_info()
    dataset: Any = info.dataset
    dataset.first, dataset.step = worker, info.num_workers


class Once(IterableDataset[Any]):
    """Holds an iterator, which the type of the dataset does not show."""

    def __init__(self, inner: Iterator[int]) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        return self.inner


class Same(IterableDataset[Any]):
    """The same sample for ever."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


@pytest.mark.parametrize("rows", [1000, 5])
@pytest.mark.parametrize("how", ["round robin", "blocks", "first worker only"])
def test_streams_that_shard_themselves_may_have_workers(rows: int, how: str) -> None:
    """However the samples are shared, and where there are fewer than are read."""
    assert one_worker_only(LoaderParts.of(Numbers(rows, how))) is None
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("rows", [1000, 5])
@pytest.mark.parametrize("how", ["not at all", "overlapping"])
def test_streams_that_repeat_samples_may_have_one_worker(rows: int, how: str) -> None:
    """The reason tells what to do."""
    assert "get_worker_info" in str(one_worker_only(LoaderParts.of(Numbers(rows, how))))


def test_a_worker_init_fn_may_do_the_sharding() -> None:
    """It is called in the workers as in the user's own loader."""
    loader = DataLoader(Numbers(100, "not at all"), worker_init_fn=_step_by_worker)
    assert one_worker_only(LoaderParts.of(loader)) is None


@pytest.mark.parametrize(
    ("dataset", "why"),
    [(Numbers(1000, "shuffled"), "random"), (Same(), "alike"), (Numbers(1000, "raises"), "RuntimeError")],
)
def test_unsure_means_one_worker(dataset: Any, why: str) -> None:
    """What cannot be compared is not risked, and it is said why."""
    assert why in str(one_worker_only(LoaderParts.of(dataset)))


class Anew(Iterator[int]):
    """Starts at zero, or at another place, whenever it is asked for as an iterator."""

    def __init__(self) -> None:
        self.next = self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        self.next = 1000 * self.passes
        return self

    def __next__(self) -> int:
        self.next += 1
        return self.next


class Asking(Once):
    """Asks for the iterator each time, as for that of a loader with persistent workers."""

    def __iter__(self) -> Iterator[int]:
        return iter(self.inner)


@pytest.mark.parametrize("inner", [iter(range(10)), iter(range(1000)), map(str, range(1000)), (n for n in range(1000))])
def test_a_stream_that_can_be_read_only_once_asks_for_a_factory(inner: Any) -> None:
    """Its second reading is empty, or goes on where the first ended."""
    with pytest.raises(TaskError, match="only once") as caught:
        one_worker_only(LoaderParts.of(Once(inner)))
    assert "factory" in caught.value.remedy


@pytest.mark.parametrize("dataset", [Asking(Anew()), Once(itertools.cycle(range(100)))])
def test_one_iterator_that_is_never_used_up_is_not_refused(dataset: Any) -> None:
    """It starts anew, or has no end."""
    assert "random" in str(one_worker_only(LoaderParts.of(dataset)))


def test_random_states_are_left_alone_and_map_style_data_is_not_read() -> None:
    """Finding out draws no number."""
    before = torch.random.get_rng_state(), random.getstate()
    one_worker_only(LoaderParts.of(Numbers(1000, "shuffled")))
    assert one_worker_only(LoaderParts.of(TensorDataset(torch.ones(3)))) is None
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert before[1] == random.getstate()


def test_a_stream_that_is_too_slow_to_compare_may_have_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding out has a time limit."""
    monkeypatch.setattr("autotune.task.sharding._READING_S", 0.0)
    assert "longer than" in str(one_worker_only(LoaderParts.of(Numbers(1000, "blocks"))))
