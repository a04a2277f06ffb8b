"""The loader that settings describe."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from autotune.build.loader import build_loader, drops_last_batch, loader_arguments
from autotune.errors import SettingsError
from autotune.settings import Settings
from autotune.task import LoaderParts


class Stream(IterableDataset[torch.Tensor]):
    """Numbers that several workers share among themselves."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.tensor(float(i)) for i in range(first, self.rows, step))


class SizedStream(Stream):
    """The same, telling its length."""

    def __len__(self) -> int:
        return self.rows


def rows_of(rows: int) -> TensorDataset:
    return TensorDataset(torch.arange(rows))


def seen(loader: DataLoader[Any]) -> list[int]:
    return [int(value) for (values,) in loader for value in values]


def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": torch.stack([sample[0] for sample in samples])}


def seed_worker(worker: int) -> None:
    torch.manual_seed(worker)


def knobs(settings: Settings) -> str:
    names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context")
    return "-".join(str(getattr(settings, name)) for name in names)


LOADER_KNOBS = [
    Settings(
        batch_size=4,
        num_workers=workers,
        prefetch_factor=prefetch,
        persistent_workers=persistent,
        pin_memory=pinned,
        multiprocessing_context=context,
    )
    for workers, persistent, pinned, context in itertools.product(
        (0, 1, 2),
        (False, True),
        (False, True),
        (None, *sorted({"fork"} & set(multiprocessing.get_all_start_methods()))),
    )
    for prefetch in ((None,) if workers == 0 else (1, 3))
    if workers or not persistent
]


@pytest.mark.parametrize("settings", LOADER_KNOBS, ids=knobs)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_every_combination_of_loader_knobs_builds_and_yields_all_samples(settings: Settings) -> None:
    """Whatever ``Settings`` admits makes a loader that reads each sample once, two epochs running.

    Reports: AnswerDotAI/ModernBERT#38, deepseek-ai/DeepSpec#40, Lightning-AI/pytorch-lightning#18394.
    """
    loader = build_loader(LoaderParts.of(rows_of(10), shuffle=False), settings, has_batch_norm=False)
    assert seen(loader) == list(range(10))
    assert seen(loader) == list(range(10))
    assert loader.num_workers == settings.num_workers
    assert loader.pin_memory == settings.pin_memory
    assert loader.persistent_workers == settings.persistent_workers
    assert loader.prefetch_factor == settings.prefetch_factor


def test_the_start_methods_reach_the_loader() -> None:
    """``multiprocessing_context`` is used with workers and left out without."""
    data = LoaderParts.of(rows_of(10))
    for method in ("spawn", "forkserver"):
        settings = Settings(num_workers=1, prefetch_factor=2, multiprocessing_context=method)
        loader = build_loader(data, settings, has_batch_norm=False)
        assert loader.multiprocessing_context.get_start_method() == method
    alone = build_loader(data, Settings(multiprocessing_context="spawn"), has_batch_norm=False)
    assert alone.multiprocessing_context is None


@pytest.mark.parametrize("workers", [0, 2])
def test_arguments_are_json_and_make_a_dataloader_as_they_are(workers: int) -> None:
    """``DataLoader(dataset, **arguments)`` works with what a JSON file holds, with the documented names only."""
    settings = Settings(batch_size=4).replace(num_workers=workers)
    arguments = json.loads(json.dumps(loader_arguments(LoaderParts.of(rows_of(10)), settings, has_batch_norm=False)))
    expected = {"batch_size": 4, "shuffle": True, "num_workers": workers, "pin_memory": False, "drop_last": False}
    if workers:
        expected |= {"prefetch_factor": 2, "persistent_workers": True}
    assert arguments == expected
    assert sorted(seen(DataLoader(rows_of(10), **arguments))) == list(range(10))


@pytest.mark.parametrize(
    "data",
    [
        LoaderParts.of(Stream(10)),
        LoaderParts.of(DataLoader(rows_of(10), batch_size=None)),
        LoaderParts.of(DataLoader(Stream(10), batch_size=None)),
        LoaderParts.of(DataLoader(rows_of(10), batch_sampler=[[0, 1], [2]])),
        LoaderParts.of(rows_of(10), sampler=[3, 4]),
    ],
    ids=["stream", "unbatched", "unbatched stream", "batch sampler", "sampler"],
)
def test_arguments_leave_out_what_torch_refuses(data: LoaderParts) -> None:
    """For every kind of data the plain arguments alone make a DataLoader that torch accepts.

    Reports: AnswerDotAI/ModernBERT#38, deepseek-ai/DeepSpec#40.
    """
    settings = Settings(batch_size=None if data.batches_kept else 4)
    DataLoader(data.dataset, **loader_arguments(data, settings, has_batch_norm=True))
    build_loader(data, settings, has_batch_norm=True)


def test_parts_of_the_users_loader_are_kept() -> None:
    """Sampler, generator, worker_init_fn, collate_fn, timeout and order of a user's DataLoader are in ours.

    Report: Lightning-AI/pytorch-lightning#14212.
    """
    generator = torch.Generator().manual_seed(1)
    sampler = WeightedRandomSampler([1.0] * 10, 20, generator=generator)
    users = DataLoader(
        rows_of(10),
        batch_size=2,
        sampler=sampler,
        generator=generator,
        worker_init_fn=seed_worker,
        collate_fn=collate,
        num_workers=1,
        timeout=30,
        in_order=False,
    )
    settings = Settings(batch_size=4).replace(num_workers=2)
    loader = build_loader(LoaderParts.of(users), settings, has_batch_norm=False)
    assert loader.sampler is sampler
    assert loader.generator is generator
    assert loader.worker_init_fn is seed_worker
    assert loader.collate_fn is collate
    assert loader.timeout == 30
    assert loader.in_order is False
    assert len(loader) == 5


def test_a_timeout_is_left_out_without_workers() -> None:
    """torch asserts a zero timeout when it loads in the training process."""
    users = DataLoader(rows_of(10), num_workers=1, timeout=30)
    assert len(seen(build_loader(LoaderParts.of(users), Settings(batch_size=4), has_batch_norm=False))) == 10


def test_a_shuffled_loader_stays_shuffled_and_a_plain_one_in_order() -> None:
    """The order of samples is the user's choice, not a knob."""
    for shuffle in (True, False):
        users = DataLoader(rows_of(200), batch_size=2, shuffle=shuffle)
        order = seen(build_loader(LoaderParts.of(users), Settings(batch_size=8), has_batch_norm=False))
        assert sorted(order) == list(range(200))
        assert (order == list(range(200))) is not shuffle


def test_a_batch_sampler_is_kept_as_it_is() -> None:
    """Batches of the user's own come out unchanged, whatever else is tuned.

    Report: meta-pytorch/opacus#352.
    """
    batches = BatchSampler(SequentialSampler(range(10)), 3, drop_last=True)

    class Own(BatchSampler):
        pass

    own = Own(SequentialSampler(range(10)), 3, drop_last=True)
    data = LoaderParts.of(DataLoader(rows_of(10), batch_sampler=own))
    loader = build_loader(data, Settings(batch_size=None).replace(num_workers=1), has_batch_norm=True)
    assert [values.tolist() for (values,) in loader] == list(batches)


def test_unbatched_data_comes_out_as_the_dataset_made_it() -> None:
    """``batch_size=None`` passes the dataset's own batches through."""
    data = LoaderParts.of(DataLoader([torch.ones(3), torch.ones(2)], batch_size=None))
    loader = build_loader(data, Settings(batch_size=None), has_batch_norm=True)
    assert [len(batch) for batch in loader] == [3, 2]


@pytest.mark.parametrize(
    ("data", "batch_size"),
    [(LoaderParts.of(DataLoader(rows_of(10), batch_sampler=[[0, 1]])), 4), (LoaderParts.of(rows_of(10)), None)],
)
def test_a_batch_size_that_cannot_apply_is_an_error(data: LoaderParts, batch_size: int | None) -> None:
    """Neither is the user's batching overruled silently, nor is a missing batch size guessed."""
    with pytest.raises(SettingsError, match=f"batch_size={batch_size}"):
        build_loader(data, Settings(batch_size=batch_size), has_batch_norm=False)


def test_a_seed_repeats_the_order_and_leaves_the_users_generator_alone() -> None:
    """Two trials with one seed read the same samples; another seed reads others; no generator of the user's moves."""
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    users = DataLoader(rows_of(50), batch_size=2, shuffle=True, generator=generator)
    first, again, other = (
        seen(build_loader(LoaderParts.of(users), Settings(batch_size=8), has_batch_norm=False, seed=seed))
        for seed in (3, 3, 4)
    )
    assert first == again != other
    assert torch.equal(generator.get_state(), before)


def test_a_given_sampler_replaces_the_users() -> None:
    """A trial reads exactly the indices it was given, and the last-batch rule counts these."""
    data = LoaderParts.of(DataLoader(rows_of(50), batch_size=2, shuffle=True, drop_last=True))
    loader = build_loader(data, Settings(batch_size=8), has_batch_norm=False, sampler=[5, 6, 7])
    assert seen(loader) == [5, 6, 7]


@pytest.mark.parametrize("data", [Stream(10), DataLoader(rows_of(10), batch_sampler=[[0]])], ids=["stream", "batches"])
def test_a_sampler_where_samples_are_not_drawn_singly_is_an_error(data: Any) -> None:
    """Indices cannot be given to a stream or beside a batch sampler."""
    parts = LoaderParts.of(data)
    settings = Settings(batch_size=None if parts.batches_kept else 2)
    with pytest.raises(SettingsError, match="sampler"):
        build_loader(parts, settings, has_batch_norm=False, sampler=[1])


def test_a_validation_loader_reads_everything_once_in_order() -> None:
    """``train=False`` neither shuffles, nor samples, nor drops."""
    sampler = WeightedRandomSampler([1.0] * 9, 9)
    for users in (
        DataLoader(rows_of(9), batch_size=4, shuffle=True, drop_last=True),
        DataLoader(rows_of(9), batch_size=4, sampler=sampler, drop_last=True),
    ):
        loader = build_loader(LoaderParts.of(users), Settings(batch_size=4), has_batch_norm=True, train=False)
        assert seen(loader) == list(range(9))


def test_a_dataset_factory_is_called() -> None:
    """A factory's dataset is made when the loader is."""
    loader = build_loader(LoaderParts.of(lambda: rows_of(10)), Settings(batch_size=4), has_batch_norm=False)
    assert sorted(seen(loader)) == list(range(10))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_read_once_per_epoch(workers: int) -> None:
    """An iterable dataset without a length loads with and without workers, nothing dropped.

    Report: Project-MONAI/MONAI#3195.
    """
    settings = Settings(batch_size=4).replace(num_workers=workers)
    loader = build_loader(LoaderParts.of(Stream(50)), settings, has_batch_norm=True)
    for _ in range(2):
        assert sorted(int(value) for batch in loader for value in batch) == list(range(50))


def test_a_stream_shorter_than_its_workers_batches_is_not_emptied() -> None:
    """Each worker drops its own last batch: where that would be more than a tenth, none is dropped."""
    data = LoaderParts.of(DataLoader(SizedStream(20), batch_size=2, drop_last=True))
    settings = Settings(batch_size=12).replace(num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sum(len(batch) for batch in build_loader(data, settings, has_batch_norm=False)) == 20


def test_a_small_dataset_is_never_emptied() -> None:
    """Ten rows at batch 64 are one batch of ten, though the user dropped incomplete ones.

    Report: dreamquark-ai/tabnet#537.
    """
    data = LoaderParts.of(DataLoader(rows_of(10), batch_size=2, drop_last=True))
    assert len(seen(build_loader(data, Settings(batch_size=64), has_batch_norm=True))) == 10


def test_the_users_own_batch_size_keeps_the_users_drop_last() -> None:
    """The baseline is the user's loader as it is, even where it leaves out much; a larger batch may not."""
    data = LoaderParts.of(DataLoader(rows_of(50), batch_size=32, drop_last=True))
    rows = [
        len(seen(build_loader(data, Settings(batch_size=batch_size), has_batch_norm=False))) for batch_size in (32, 40)
    ]
    assert rows == [32, 50]


def test_a_lone_row_is_kept_from_batch_norm_only() -> None:
    """Nine rows by four leave one: BatchNorm cannot train on it, other layers can."""
    data = LoaderParts.of(rows_of(9))
    rows = [
        len(seen(build_loader(data, Settings(batch_size=4), has_batch_norm=has_batch_norm)))
        for has_batch_norm in (True, False)
    ]
    assert rows == [8, 9]


@given(
    samples=st.integers(1, 2000),
    batch_size=st.integers(1, 600),
    wanted=st.booleans(),
    has_batch_norm=st.booleans(),
)
@example(samples=1, batch_size=2, wanted=True, has_batch_norm=True)
@example(samples=9, batch_size=4, wanted=False, has_batch_norm=True)
@example(samples=5, batch_size=3, wanted=True, has_batch_norm=False)
def test_the_last_batch_rule_holds_everywhere(
    samples: int, batch_size: int, wanted: bool, has_batch_norm: bool
) -> None:
    """No epoch empty, at most max(1, 10 %) dropped, a wish granted within that, no avoidable lone row.

    Report: dreamquark-ai/tabnet#537.
    """
    dropping = drops_last_batch(samples, batch_size, wanted=wanted, has_batch_norm=has_batch_norm)
    rest = samples % batch_size
    dropped = rest if dropping else 0
    assert samples - dropped > 0
    assert dropped <= max(1, samples * 0.1)
    if samples > batch_size and has_batch_norm and rest == 1:
        assert dropping
    if wanted and samples >= batch_size and rest <= max(1, samples * 0.1):
        assert dropping
    if not wanted and not (has_batch_norm and rest == 1):
        assert not dropping


def test_a_stream_of_unknown_length_is_dropped_as_wanted() -> None:
    """Without a length only the user can know."""
    for wanted in (True, False):
        assert drops_last_batch(None, 8, wanted=wanted, has_batch_norm=True, workers=4) is wanted


def test_daemonic_processes_get_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an assertion of multiprocessing's in the middle of an epoch; without workers all is well."""
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=True))
    parts = LoaderParts.of([1.0, 2.0])
    workers = Settings(batch_size=1, num_workers=1, prefetch_factor=2)
    with pytest.raises(SettingsError, match="this process is daemonic"):
        build_loader(parts, workers, has_batch_norm=False)
    assert len(build_loader(parts, Settings(batch_size=1), has_batch_norm=False)) == 2
