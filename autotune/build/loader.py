"""The DataLoader that ``Settings`` describe, with everything of the user's own loader kept."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from autotune.build.length_grouping import LengthGroupedBatchSampler
from autotune.errors import SettingsError
from autotune.settings import Settings
from autotune.task import LoaderParts
from autotune.task.lengths import sample_lengths
from autotune.task.workers import daemonic_refusal

__all__ = ["build_loader", "drops_last_batch", "loader_arguments"]

LARGEST_DROPPED_SHARE = 0.1
"""At most this share of an epoch's samples (but always one sample) may be left out as an incomplete batch."""


def build_loader(
    data: LoaderParts,
    settings: Settings,
    *,
    has_batch_norm: bool,
    seed: int | None = None,
    sampler: Any = None,
    train: bool = True,
    lengths: Callable[[LoaderParts], torch.Tensor] = sample_lengths,
) -> DataLoader[Any]:
    """A plain ``DataLoader`` over the user's data with the knobs of ``settings``.

    Args:
        data: The user's data and loader parts; a dataset factory is called.
        settings: The knobs.
        has_batch_norm: Whether the model holds BatchNorm layers, which cannot train on a lone row.
        seed: Seeds a fresh generator in place of the user's (for repeatable trials); None: the user's, as it is.
        sampler: Replaces the user's sampler and shuffling; only where samples are drawn one by one.
        train: False: every sample once, in order, with no sampler and no batch left out (for validation).
        lengths: Says how long each sample is, for ``length_grouped``; by default by reading all of them once.

    Returns:
        The loader. The user's sampler, batch sampler, generator, worker_init_fn, collate_fn, timeout and
        ordering are kept; ``drop_last`` by ``drops_last_batch``, and as it is at the user's own batch size.

    Raises:
        SettingsError: The batch size cannot be chosen here (or must be), ``sampler`` cannot be used, or this process
            may not start workers.
    """
    daemonic = daemonic_refusal() if settings.num_workers else None
    if daemonic is not None:
        raise SettingsError(f"num_workers={settings.num_workers} is not possible here: {daemonic}.", "")
    parts = data.resolve() if data.dataset is None else data
    if sampler is not None and (parts.iterable or parts.batch_sampler is not None):
        kind = "an iterable dataset" if parts.iterable else "a custom batch_sampler"
        raise SettingsError(f"A sampler cannot be given to {kind}.", "Leave the sampler out.")
    samples = len(sampler) if isinstance(sampler, Sized) else parts.samples
    arguments = _arguments(parts, settings, has_batch_norm=has_batch_norm, samples=samples)
    if not train:
        _unshuffle(arguments)
    arguments.update(_objects(parts, seed=seed, sampler=sampler, train=train))
    if settings.length_grouped and train:
        _group(arguments, parts, lengths)
    if arguments.get("sampler") is not None:
        arguments["shuffle"] = False
    return DataLoader(parts.dataset, **arguments)


def loader_arguments(data: LoaderParts, settings: Settings, *, has_batch_norm: bool) -> dict[str, Any]:
    """The keyword arguments of ``build_loader``'s DataLoader that are plain values.

    Args:
        data: The user's loader parts, with the dataset made (its length decides about ``drop_last``).
        settings: The knobs.
        has_batch_norm: Whether the model holds BatchNorm layers.

    Returns:
        JSON scalars by name, in a stable order. What torch refuses together is left out: prefetching, persistence
        and start method without workers; shuffling of an iterable dataset; batch size, shuffling and ``drop_last``
        beside a batch sampler. ``DataLoader(dataset, **arguments)`` works.

    Raises:
        SettingsError: The batch size cannot be chosen here, or must be.
    """
    return _arguments(data, settings, has_batch_norm=has_batch_norm, samples=data.samples)


def drops_last_batch(
    samples: int | None, batch_size: int, *, wanted: bool, has_batch_norm: bool, workers: int | None = None
) -> bool:
    """Whether to leave out an incomplete last batch.

    Never so that an epoch is empty, never more than ``max(1, 10 %)`` of the samples. Within that: where the user
    wants it, and where the last batch would be a lone row for BatchNorm.

    Args:
        samples: Samples per epoch; None where a stream does not tell, then it is as the user wants it.
        batch_size: Samples per batch.
        wanted: The user's own ``drop_last``.
        has_batch_norm: Whether the model holds BatchNorm layers.
        workers: Of a stream read by several workers: their number, since each of them drops its own last batch.
    """
    if samples is None:
        return wanted
    if samples < batch_size:
        return False
    if workers is not None and workers > 1:
        return wanted and workers * (batch_size - 1) <= samples * LARGEST_DROPPED_SHARE
    rest = samples % batch_size
    lone_row = has_batch_norm and rest == 1
    return (wanted or lone_row) and rest <= max(1, samples * LARGEST_DROPPED_SHARE)


def _arguments(data: LoaderParts, settings: Settings, *, has_batch_norm: bool, samples: int | None) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    batch_size = _batch_size(data, settings)
    if data.batch_sampler is None:
        arguments["batch_size"] = batch_size
        if not data.iterable:
            arguments["shuffle"] = bool(data.shuffle) and data.sampler is None
    arguments["num_workers"] = settings.num_workers
    if settings.num_workers > 0:
        arguments["prefetch_factor"] = settings.prefetch_factor
        arguments["persistent_workers"] = settings.persistent_workers
        if settings.multiprocessing_context is not None:
            arguments["multiprocessing_context"] = settings.multiprocessing_context
        if data.timeout:
            arguments["timeout"] = data.timeout
        if not data.in_order:
            arguments["in_order"] = False
    arguments["pin_memory"] = settings.pin_memory
    if batch_size is not None:
        arguments["drop_last"] = _drop_last(data, settings, batch_size, has_batch_norm, samples)
    return arguments


def _batch_size(data: LoaderParts, settings: Settings) -> int | None:
    kept = data.batches_kept
    if kept is not None and settings.batch_size is not None:
        raise SettingsError(f"batch_size={settings.batch_size} cannot be applied: {kept}.", "Use batch_size=None.")
    if kept is None and settings.batch_size is None:
        raise SettingsError("batch_size=None: this data is not batched by the user.", "Give a number.")
    return settings.batch_size


def _drop_last(
    data: LoaderParts, settings: Settings, batch_size: int, has_batch_norm: bool, samples: int | None
) -> bool:
    as_the_user_has_it = data.given and not data.iterable and batch_size == data.batch_size
    if as_the_user_has_it and data.drop_last and (samples is None or samples >= batch_size):
        return True
    workers = max(1, settings.num_workers) if data.iterable else None
    return drops_last_batch(samples, batch_size, wanted=data.drop_last, has_batch_norm=has_batch_norm, workers=workers)


def _group(arguments: dict[str, Any], data: LoaderParts, lengths: Callable[[LoaderParts], torch.Tensor]) -> None:
    """Puts a batch sampler in the place of everything it decides."""
    if data.order_kept is not None:
        raise SettingsError(
            f"length_grouped=True is not possible here: {data.order_kept}.", "Use length_grouped=False."
        )
    sampler, generator = arguments.pop("sampler"), arguments["generator"]
    arguments["batch_sampler"] = LengthGroupedBatchSampler(
        RandomSampler(data.dataset, generator=generator) if sampler is None else sampler,
        lengths(data),
        arguments.pop("batch_size"),
        drop_last=arguments.pop("drop_last"),
        generator=generator,
    )
    del arguments["shuffle"]


def _unshuffle(arguments: dict[str, Any]) -> None:
    for name in ("shuffle", "drop_last"):
        if name in arguments:
            arguments[name] = False


def _objects(data: LoaderParts, *, seed: int | None, sampler: Any, train: bool) -> dict[str, Any]:
    """What is no plain value: the user's own callables and samplers."""
    generator = data.generator if seed is None else torch.Generator().manual_seed(seed)
    objects = {
        "collate_fn": data.collate_fn,
        "worker_init_fn": data.worker_init_fn,
        "generator": generator,
        "batch_sampler": data.batch_sampler,
    }
    if sampler is None and train:
        sampler = data.sampler
    return {**objects, "sampler": sampler}
