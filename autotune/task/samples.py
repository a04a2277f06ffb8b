"""The first samples of a dataset as one batch, with errors that say what does not fit together."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert

from autotune.errors import TaskError
from autotune.task.batches import sample_signature
from autotune.task.loader_parts import DEFAULT_BATCH_SIZE, LoaderParts
from autotune.task.names import qualified_name
from autotune.task.rng import rng_kept

__all__ = ["collated", "described_rows", "first_batch", "generator_kept", "stacking_refusal"]

_DESCRIBED_ROWS = 8
"""Enough to see ragged samples and batch statistics, small enough to fit anywhere."""
_TRIED_ROWS = 4
_SHOWN = 3


def first_batch(data: LoaderParts, *, rows: int | None = None) -> Any:
    """One batch as a loader without workers would give it, of the first samples in the sampler's order.

    Random generators, a sampler's own included, are put back. A stream is read from its start.

    Args:
        data: Resolved parts.
        rows: Samples; default: the loader's batch size, else 32. Batches that are not ours to size come as they are.

    Returns:
        The collated batch.

    Raises:
        TaskError: There is no sample, the dataset raised, or its samples do not make a batch; for samples of unequal
            sizes the message shows them and names ``collate_fn``.
    """
    samples = _first_samples(data, rows or data.batch_size or DEFAULT_BATCH_SIZE)
    return collated(data, samples)


def described_rows(data: LoaderParts, base_batch_size: int | None) -> int | None:
    """Samples in the batch by which a task is described.

    Args:
        data: Resolved parts.
        base_batch_size: The task's.

    Returns:
        8, or fewer where the user's own batches are smaller; None where they are not ours to size.
    """
    if data.batches_kept is not None:
        return None
    return max(1, min(data.batch_size or base_batch_size or _DESCRIBED_ROWS, _DESCRIBED_ROWS))


def stacking_refusal(data: LoaderParts) -> str | None:
    """Why samples that make batches of one do not make larger ones.

    Args:
        data: Resolved parts.

    Returns:
        The reason; None where four samples (or all there are) make a batch.

    Raises:
        TaskError: The dataset raised.
    """
    samples = _first_samples(data, _TRIED_ROWS)
    try:
        collated(data, samples)
    except TaskError as error:
        return f"larger batches do not work: {error}"
    return None


def _first_samples(data: LoaderParts, rows: int) -> Any:
    with rng_kept(), generator_kept(data):
        try:
            samples = _read(data, rows)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"The dataset ({qualified_name(type(data.dataset))}) raised {type(error).__name__} when read: {error}.",
                "Check that dataset[0] (or next(iter(dataset))) works.",
            ) from error
    return samples


def _read(data: LoaderParts, rows: int) -> Any:
    dataset = data.dataset
    if data.batches_kept is not None and data.batch_sampler is None:  # the dataset yields whole batches
        return next(iter(dataset)) if data.iterable else dataset[next(_indices(data))]
    if data.iterable:
        samples = list(itertools.islice(iter(dataset), rows))
    else:
        indices = next(iter(data.batch_sampler)) if data.batch_sampler is not None else _indices(data)
        chosen = list(indices if data.batch_sampler is not None else itertools.islice(indices, rows))
        fetch = getattr(dataset, "__getitems__", None)  # as torch's own loader does
        samples = fetch(chosen) if callable(fetch) else [dataset[index] for index in chosen]
    if not samples:
        raise TaskError(
            f"The dataset ({qualified_name(type(dataset))}) has no samples.",
            "Check the path or the filter it was made with.",
        )
    return samples


def _indices(data: LoaderParts) -> Iterator[Any]:
    return iter(range(len(data.dataset)) if data.sampler is None else data.sampler)


def collated(data: LoaderParts, samples: Any) -> Any:
    whole = data.batches_kept is not None and data.batch_sampler is None
    collate = data.collate_fn or (default_convert if whole else default_collate)
    try:
        with rng_kept():
            return collate(samples)
    except Exception as error:
        cause = f"{type(error).__name__}: {str(error).splitlines()[0].rstrip('.') if str(error) else ''}"
        raise _collate_error(data, samples, cause) from error


def _collate_error(data: LoaderParts, samples: Any, cause: str) -> TaskError:
    kinds = list(dict.fromkeys(map(sample_signature, samples))) if isinstance(samples, list) else []
    shown = ", ".join(kinds[:_SHOWN])
    if len(kinds) > 1:
        more = ", …" if len(kinds) > _SHOWN else ""
        return TaskError(
            f"{len(samples)} samples of unequal sizes do not make a batch: {shown}{more} ({cause}).",
            "Pass a collate_fn that pads them, or crop or resize them in the dataset.",
        )
    name = "torch's default collate_fn" if data.collate_fn is None else f"collate_fn {qualified_name(data.collate_fn)}"
    return TaskError(
        f"{name} failed on samples like {shown or type(samples).__name__} ({cause}).",
        "Return tensors, arrays, numbers or containers of them from the dataset, or pass a collate_fn.",
    )


@contextlib.contextmanager
def generator_kept(data: LoaderParts) -> Iterator[None]:
    inner = getattr(data.batch_sampler, "sampler", None)
    owners = (data.sampler, data.batch_sampler, inner)
    found = [getattr(owner, "generator", None) for owner in owners]
    states = [(generator, generator.get_state()) for generator in found if isinstance(generator, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
