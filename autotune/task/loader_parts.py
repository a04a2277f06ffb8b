"""A user's data taken apart: what a ``DataLoader`` is made of, wherever it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from autotune.errors import AutotuneError, SettingsError, TaskError
from autotune.task.dataset import FactoryStream, check_dataset, is_factory, length
from autotune.task.lightning import TrainDataLoader, is_data_module
from autotune.task.names import qualified_name
from autotune.task.sampler_keys import key_refusal
from autotune.task.worker_state import SharedState, shared_states

__all__ = ["DEFAULT_BATCH_SIZE", "LoaderParts"]

DEFAULT_BATCH_SIZE = 32
"""Assumed where neither a DataLoader nor ``base_batch_size`` says otherwise."""
_MOST_GROUPED = 10**8  # lengths, 8 bytes each
_JSON_FIELDS = (
    "given",
    "batch_size",
    "shuffle",
    "drop_last",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "timeout",
    "multiprocessing_context",
    "in_order",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderParts:
    """What a ``DataLoader`` is made of."""

    dataset: Any = None
    """Map-style or iterable dataset; None exactly when ``dataset_factory`` has not been called yet."""
    dataset_factory: Callable[[], Any] | None = None
    batch_size: int | None = None
    """The user's DataLoader's; None: none of its own, or not the loader's to decide (``batches_kept``)."""
    shuffle: bool | None = False
    """None only while a factory has not been called: decided by what it makes."""
    sampler: Any = None
    batch_sampler: Any = None
    collate_fn: Callable[..., Any] | None = None
    """None: torch's default."""
    drop_last: bool = False
    generator: torch.Generator | None = None
    worker_init_fn: Callable[[int], Any] | None = None
    timeout: float = 0.0
    """Seconds a worker may take for a batch; 0: no limit."""
    num_workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    multiprocessing_context: str | None = None
    """Start method of the workers; None: the process's."""
    in_order: bool = True
    given: bool = False
    """These are the settings of the user's own DataLoader, not assumed ones."""
    shared_states: tuple[SharedState, ...] = ()
    """What dataset and ``collate_fn`` held, when they were handed over or made, that workers must not share."""

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        collate_fn: Callable[..., Any] | None = None,
        sampler: Any = None,
        shuffle: bool | None = None,
    ) -> LoaderParts:
        """Take apart what the user handed over; nothing is iterated, called or changed.

        Args:
            data: A map-style dataset (``__getitem__`` and ``__len__``), an ``IterableDataset``, a ``DataLoader``, a
                ``LightningDataModule``, a factory without arguments that makes one of these, or parts already.
            collate_fn: List of samples -> batch; None: torch's default.
            sampler: Iterable of indices; None: by ``shuffle``.
            shuffle: None: True for map-style datasets without a sampler.

        Returns:
            The parts.

        Raises:
            TaskError: ``data`` cannot be loaded from, has no samples, or is a stream that can be read only once.
            SettingsError: Arguments that cannot go together.
        """
        _check_arguments(collate_fn, sampler, shuffle)
        if isinstance(data, LoaderParts):
            _refuse_beside_loader(collate_fn=collate_fn, sampler=sampler, shuffle=shuffle)
            return data
        if is_data_module(data):
            data = TrainDataLoader(data)
        if isinstance(data, DataLoader):
            _refuse_beside_loader(collate_fn=collate_fn, sampler=sampler, shuffle=shuffle)
            return _of_loader(data)
        if is_factory(data):
            return cls(dataset_factory=data, shuffle=shuffle, sampler=sampler, collate_fn=collate_fn)
        check_dataset(data)
        iterable = isinstance(data, IterableDataset)
        if iterable:
            _refuse_for_iterable(sampler=sampler, shuffle=shuffle)
        shuffled = (sampler is None and not iterable) if shuffle is None else shuffle
        return cls(
            dataset=data,
            shuffle=shuffled,
            sampler=sampler,
            collate_fn=collate_fn,
            shared_states=shared_states(dataset=data, collate_fn=collate_fn),
        )

    def resolve(self) -> LoaderParts:
        """The parts with the dataset made: calls the factory, if there is one.

        A factory that returns an iterator becomes a ``FactoryStream``, read anew every epoch.

        Returns:
            Parts whose ``dataset`` is there; these very parts where it already was.

        Raises:
            TaskError: The factory failed, or what it made cannot be loaded from.
        """
        if self.dataset_factory is None:
            return self
        try:
            made = self.dataset_factory()
        except AutotuneError:
            raise
        except Exception as error:
            raise TaskError(
                f"The dataset factory {qualified_name(self.dataset_factory)} raised {type(error).__name__}: {error}.",
                "It is called without arguments and must return a dataset or a DataLoader.",
            ) from error
        if isinstance(made, Iterator):
            made = FactoryStream(self.dataset_factory)
        if is_factory(made):
            raise TaskError(
                f"The dataset factory {qualified_name(self.dataset_factory)} returned another callable.",
                "It must return a dataset or a DataLoader.",
            )
        parts = LoaderParts.of(made, collate_fn=self.collate_fn, sampler=self.sampler, shuffle=self.shuffle)
        return parts.resolve() if is_data_module(made) else parts

    @property
    def iterable(self) -> bool:
        """Whether samples come as a stream instead of by index; False while a factory has not been called."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def samples(self) -> int | None:
        """Samples per epoch: the sampler's length, else the dataset's; None where neither has one.

        With ``batch_size=None`` the dataset yields whole batches, whose rows are not known: None.
        """
        if self.given and self.batch_size is None and self.batch_sampler is None:
            return None
        sampler = self.sampler if self.batch_sampler is None else getattr(self.batch_sampler, "sampler", None)
        counted = None if sampler is None else length(sampler)
        return length(self.dataset) if counted is None else counted

    @property
    def batches_kept(self) -> str | None:
        """Why the batch size is not ours to choose; None where it is."""
        if self.batch_sampler is not None:
            return f"a batch_sampler of its own ({qualified_name(self.batch_sampler)}) decides the batches"
        if self.given and self.batch_size is None:
            return "batch_size=None: the dataset yields whole batches"
        return None

    @property
    def order_kept(self) -> str | None:
        """Why samples cannot be put into batches in another order; None where they can."""
        if self.batches_kept is not None:
            return self.batches_kept
        if self.iterable:
            return "a stream yields its samples in its own order"
        if self.sampler is None and not self.shuffle:
            return "the samples come in the order of the dataset (shuffle=False)"
        samples = length(self.dataset) or 0
        if samples > _MOST_GROUPED:
            return f"the dataset says that it has {samples:,} samples, too many to know the length of each"
        return key_refusal(self.sampler)

    def to_json(self) -> dict[str, Any]:
        """The settings in it as JSON scalars: all but the dataset and the user's callables, samplers and generator."""
        return {name: getattr(self, name) for name in _JSON_FIELDS}


def _of_loader(loader: DataLoader[Any]) -> LoaderParts:
    _check_loader_class(loader)
    check_dataset(loader.dataset)
    context = loader.multiprocessing_context
    parts = LoaderParts(
        dataset=loader.dataset,
        **_order(loader),
        collate_fn=None if loader.collate_fn in (default_collate, default_convert) else loader.collate_fn,
        generator=loader.generator,
        worker_init_fn=loader.worker_init_fn,
        timeout=float(loader.timeout),
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory=bool(loader.pin_memory),
        multiprocessing_context=None if context is None else context.get_start_method(allow_none=True),
        in_order=loader.in_order,
        given=True,
        shared_states=shared_states(dataset=loader.dataset, collate_fn=loader.collate_fn),
    )
    if parts.drop_last and parts.samples is not None and parts.samples < (parts.batch_size or 0):
        raise TaskError(
            f"The DataLoader yields no batch: {parts.samples} samples, batch_size={parts.batch_size}, drop_last=True.",
            "Use a smaller batch_size, or drop_last=False.",
        )
    return parts


def _order(loader: DataLoader[Any]) -> dict[str, Any]:
    """Which samples come when: batch size, sampler and what they become in an equal DataLoader."""
    size, sampler, drop_last = loader.batch_size, loader.sampler, loader.drop_last
    batch_sampler: Any = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        return {"batch_size": size, "drop_last": drop_last}
    if type(batch_sampler) is BatchSampler and size is None:  # the same as batch_size and sampler
        size, sampler, drop_last = batch_sampler.batch_size, batch_sampler.sampler, batch_sampler.drop_last
    elif batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return {"batch_sampler": batch_sampler}
    shuffle = _shuffles(sampler, loader)
    return {
        "batch_size": size,
        "drop_last": drop_last,
        "shuffle": bool(shuffle),
        "sampler": sampler if shuffle is None else None,
    }


def _shuffles(sampler: Any, loader: DataLoader[Any]) -> bool | None:
    """What ``shuffle=`` makes an equal sampler; None where only the sampler itself will do."""
    if getattr(sampler, "data_source", None) is not loader.dataset:
        return None
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.generator is not loader.generator:
        return None
    return True if sampler.num_samples == length(loader.dataset) else None


def _check_arguments(collate_fn: Any, sampler: Any, shuffle: Any) -> None:
    if collate_fn is not None and not callable(collate_fn):
        raise TaskError(f"collate_fn must be callable, not {type(collate_fn).__name__}.", "It maps samples to a batch.")
    if shuffle is not None and not isinstance(shuffle, bool):
        raise SettingsError(f"shuffle must be True, False or None, not {shuffle!r}.", "")
    if sampler is not None and not hasattr(sampler, "__iter__"):
        raise TaskError(
            f"sampler must be an iterable of indices, not {type(sampler).__name__}.", "Pass a torch Sampler or a list."
        )
    if sampler is not None and isinstance(sampler, Iterator):
        raise TaskError("sampler is an iterator that can be read only once.", "Pass a torch Sampler or a list.")
    if sampler is not None and length(sampler) == 0:
        raise TaskError("sampler has no indices.", "Check the filter it was made with.")
    if sampler is not None and shuffle:
        raise SettingsError("shuffle=True cannot go with a sampler.", "Leave one of them out.")


def _refuse_beside_loader(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise SettingsError(
                f"{name} was given together with a DataLoader, which has its own.",
                f"Set it in the DataLoader, or pass the dataset and {name}.",
            )


def _refuse_for_iterable(*, sampler: Any, shuffle: bool | None) -> None:
    if sampler is not None or shuffle:
        name = "sampler" if sampler is not None else "shuffle=True"
        raise SettingsError(
            f"{name} cannot go with an IterableDataset, which decides the order itself.", f"Leave {name} out."
        )


def _check_loader_class(loader: DataLoader[Any]) -> None:
    cls = type(loader)
    if cls.__iter__ is not DataLoader.__iter__ and not cls.__module__.startswith("torchdata."):
        raise TaskError(
            f"{qualified_name(cls)} is a DataLoader with an __iter__ of its own, which a plain one would not have.",
            "Pass a plain torch DataLoader, or the dataset with collate_fn and sampler.",
        )
