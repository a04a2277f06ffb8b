"""A user's data taken apart."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from autotune.errors import SettingsError, TaskError
from autotune.task import LoaderParts


class Stream(IterableDataset[Any]):
    """Ten samples without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(10))


class SelfIterating(IterableDataset[Any]):
    """Starts anew with every ``iter``, which returns itself."""

    def __iter__(self) -> SelfIterating:
        self.at = 0
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at > 3:
            raise StopIteration
        return self.at


class Around(IterableDataset[Any]):
    """An iterable dataset around whatever it is given."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


def collate(samples: list[Any]) -> Any:
    return default_collate(samples)


def init(worker: int) -> None:
    pass


def data(samples: int = 20) -> TensorDataset:
    return TensorDataset(torch.arange(samples))


def test_a_dataset_is_shuffled_and_not_given() -> None:
    """Map-style data without a sampler is shuffled unless the user says otherwise."""
    parts = LoaderParts.of(data())
    assert parts.shuffle is True
    assert not parts.given
    assert parts.batches_kept is None
    assert parts.samples == 20
    assert not parts.iterable
    assert LoaderParts.of(data(), shuffle=False).shuffle is False
    assert LoaderParts.of(data(), sampler=[1, 2]).shuffle is False
    assert LoaderParts.of(data(), sampler=[1, 2]).samples == 2
    assert LoaderParts.of([torch.zeros(2), torch.ones(2)]).samples == 2


def test_a_stream_is_not_shuffled_and_may_have_no_length() -> None:
    """Iterable datasets decide their order and length themselves."""
    parts = LoaderParts.of(Stream())
    assert parts.iterable
    assert parts.shuffle is False
    assert parts.samples is None
    assert LoaderParts.of(SelfIterating()).iterable


def test_every_setting_of_a_users_loader_is_kept() -> None:
    """Nothing a DataLoader was made with gets lost."""
    generator = torch.Generator()
    loader = DataLoader(
        data(),
        batch_size=4,
        sampler=WeightedRandomSampler([1.0] * 20, 12),
        num_workers=2,
        collate_fn=collate,
        pin_memory=False,
        drop_last=True,
        timeout=5,
        worker_init_fn=init,
        multiprocessing_context="spawn",
        generator=generator,
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
    )
    parts = LoaderParts.of(loader)
    assert parts.to_json() == {
        "given": True,
        "batch_size": 4,
        "shuffle": False,
        "drop_last": True,
        "num_workers": 2,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory": False,
        "timeout": 5.0,
        "multiprocessing_context": "spawn",
        "in_order": False,
    }
    assert parts.dataset is loader.dataset
    assert parts.sampler is loader.sampler
    assert parts.generator is generator
    assert parts.collate_fn is collate
    assert parts.worker_init_fn is init
    assert parts.samples == 12
    assert parts.batches_kept is None


def test_a_context_object_becomes_its_name() -> None:
    """Contexts cannot cross to another process, names can."""
    context = multiprocessing.get_context("spawn")
    loader = DataLoader(data(), num_workers=1, multiprocessing_context=context)
    assert LoaderParts.of(loader).multiprocessing_context == "spawn"


def test_default_collate_is_not_a_collate_of_the_users() -> None:
    """None stands for torch's default, with batches and without."""
    assert LoaderParts.of(DataLoader(data())).collate_fn is None
    assert LoaderParts.of(DataLoader(data(), batch_size=None)).collate_fn is None


@pytest.mark.parametrize(
    ("options", "shuffle", "kept"),
    [
        ({"shuffle": True}, True, False),
        ({"shuffle": False}, False, False),
        ({"sampler": SubsetRandomSampler([1, 2, 3])}, False, True),
        ({"sampler": RandomSampler(range(20))}, False, True),
    ],
)
def test_shuffling_is_recognised_and_other_samplers_are_kept(options: Any, shuffle: bool, kept: bool) -> None:
    """Only torch's own default samplers are replaced by a flag."""
    loader = DataLoader(data(), batch_size=2, **options)
    parts = LoaderParts.of(loader)
    assert parts.shuffle is shuffle
    assert (parts.sampler is loader.sampler) is kept
    assert (parts.sampler is None) is not kept


@pytest.mark.parametrize(
    "options",
    [{"replacement": True}, {"num_samples": 7}, {"generator": torch.Generator()}],
)
def test_a_random_sampler_with_options_is_kept_as_it_is(options: Any) -> None:
    """Replacement, another length and a generator of its own are more than shuffle=True."""
    dataset = data()
    sampler = RandomSampler(dataset, **options)
    parts = LoaderParts.of(DataLoader(dataset, sampler=sampler))
    assert parts.sampler is sampler
    assert parts.samples == options.get("num_samples", 20)


def test_the_generator_of_shuffle_is_kept() -> None:
    """shuffle=True with a generator is still shuffle=True with that generator."""
    generator = torch.Generator()
    parts = LoaderParts.of(DataLoader(data(), shuffle=True, generator=generator))
    assert parts.shuffle is True
    assert parts.sampler is None
    assert parts.generator is generator


def test_batches_that_are_not_ours_to_size_say_so() -> None:
    """batch_size=None and custom batch samplers keep the user's batches."""

    class Buckets(BatchSampler):
        pass

    dataset = data()
    buckets = Buckets(SequentialSampler(dataset), 4, False)
    custom = LoaderParts.of(DataLoader(dataset, batch_sampler=buckets))
    assert custom.batch_sampler is buckets
    assert "Buckets" in str(custom.batches_kept)
    assert custom.samples == 20
    whole = LoaderParts.of(DataLoader(dataset, batch_size=None))
    assert "batch_size=None" in str(whole.batches_kept)
    assert whole.samples is None
    assert LoaderParts.of(DataLoader(Stream(), batch_size=None)).batches_kept
    assert LoaderParts.of([[1], [2]], sampler=[0]).batches_kept is None


def test_torchs_own_batch_sampler_is_a_batch_size() -> None:
    """BatchSampler(sampler, n, drop) is nothing but a batch size."""
    dataset = data()
    sampler = SubsetRandomSampler(range(15))
    parts = LoaderParts.of(DataLoader(dataset, batch_sampler=BatchSampler(sampler, 4, True)))
    assert parts.batches_kept is None
    assert parts.batch_size == 4
    assert parts.drop_last
    assert parts.sampler is sampler


def test_a_factory_is_called_only_by_resolve() -> None:
    """It may make a dataset, a stream, a DataLoader or an iterator; options are applied to what it makes."""
    calls = []

    def make() -> Any:
        calls.append(1)
        return data(6)

    parts = LoaderParts.of(make, collate_fn=collate)
    assert calls == []
    assert parts.dataset is None
    assert parts.samples is None
    resolved = parts.resolve()
    assert calls == [1]
    assert resolved.samples == 6
    assert resolved.shuffle is True
    assert resolved.collate_fn is collate
    assert resolved.resolve() is resolved
    loader = LoaderParts.of(lambda: DataLoader(data(), batch_size=5)).resolve()
    assert loader.given
    assert loader.batch_size == 5
    assert LoaderParts.of(Stream).resolve().iterable


def test_a_factory_of_iterators_is_read_anew_every_epoch() -> None:
    """A generator function is a fine source of data."""

    def samples() -> Iterator[int]:
        yield from (1, 2, 3)

    parts = LoaderParts.of(samples).resolve()
    assert parts.iterable
    assert list(parts.dataset) == list(parts.dataset) == [1, 2, 3]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "dataset is None"),
        ([], "no samples"),
        (TensorDataset(torch.zeros(0, 2)), "no samples"),
        ((sample for sample in range(3)), "factory"),
        (iter([1, 2]), "factory"),
        (Around(sample for sample in range(3)), "factory"),
        (Around(zip([1], [2], strict=True)), "factory"),
        (3, "IterableDataset"),
        ("folder/of/images", "IterableDataset"),
        ({1, 2}, "IterableDataset"),
        ({"train": [1], "test": [2]}, r"dataset\['train'\]"),
        ((torch.zeros(5, 2), torch.zeros(5)), "TensorDataset"),
    ],
)
def test_what_cannot_be_trained_from_is_refused_with_the_remedy(value: Any, named: str) -> None:
    """Each wrong dataset gets its own sentence."""
    with pytest.raises(TaskError, match=named):
        LoaderParts.of(value)


def test_one_pass_streams_inside_a_loader_are_refused_too() -> None:
    """Taking a DataLoader apart does not hide what it reads from."""
    with pytest.raises(TaskError, match="factory"):
        LoaderParts.of(DataLoader(Around(sample for sample in range(3))))


@pytest.mark.parametrize(
    ("factory", "named"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: None, "None"),
        (lambda: lambda: 3, "callable"),
        (lambda needed: needed, "TypeError"),
        (list, "no samples"),
    ],
)
def test_a_factory_that_fails_is_named(factory: Any, named: str) -> None:
    """The cause is what the factory raised or returned."""
    with pytest.raises(TaskError, match=named):
        LoaderParts.of(factory).resolve()


@pytest.mark.parametrize(
    ("value", "options", "error"),
    [
        (data(), {"collate_fn": 3}, TaskError),
        (data(), {"sampler": 3}, TaskError),
        (data(), {"sampler": iter([1])}, TaskError),
        (data(), {"sampler": []}, TaskError),
        (data(), {"shuffle": 1}, SettingsError),
        (data(), {"shuffle": True, "sampler": [1]}, SettingsError),
        (Stream(), {"shuffle": True}, SettingsError),
        (Stream(), {"sampler": [1]}, SettingsError),
        (DataLoader(data()), {"collate_fn": collate}, SettingsError),
        (DataLoader(data()), {"shuffle": False}, SettingsError),
    ],
)
def test_options_that_cannot_be_are_refused(value: Any, options: Any, error: type[Exception]) -> None:
    """Wrong types and contradictions are told before anything runs."""
    with pytest.raises(error, match=next(iter(options))):
        LoaderParts.of(value, **options)


def test_a_loader_that_yields_nothing_is_refused() -> None:
    """drop_last with fewer samples than a batch would train on nothing, without a word."""
    with pytest.raises(TaskError, match="drop_last"):
        LoaderParts.of(DataLoader(data(3), batch_size=4, drop_last=True))


def test_a_loader_that_iterates_in_its_own_way_is_refused() -> None:
    """Its batches would not come out of a plain DataLoader."""

    class Doubling(DataLoader[Any]):
        def __iter__(self) -> Any:
            return iter([1, 1])

    with pytest.raises(TaskError, match="Doubling"):
        LoaderParts.of(Doubling(data()))


def test_taking_apart_draws_no_random_number_and_reads_no_sample() -> None:
    """The user's data and generators are only looked at."""

    class Untouchable(Dataset[Any]):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read")

    state = torch.get_rng_state()
    LoaderParts.of(DataLoader(Untouchable(), shuffle=True, batch_size=2))
    assert torch.equal(torch.get_rng_state(), state)
