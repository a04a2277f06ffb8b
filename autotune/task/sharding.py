"""Whether a stream's workers share its samples among themselves, found out by reading the first ones."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from autotune.errors import TaskError
from autotune.task.loader_parts import LoaderParts
from autotune.task.names import qualified_name
from autotune.task.rng import rng_kept
from autotune.task.structure import DEPTH, SCALARS, children

__all__ = ["one_worker_only"]

_SAMPLES = 8
"""Read from each of the two workers: a stream that repeats itself shows it with the first ones."""
_READING_S = 5.0
"""For the samples read in this process, each time."""
_WORKER_TIMEOUT_S = 20.0
_NOT_SHARDED = "each of several workers would yield every sample of this stream again; shard it by get_worker_info()"
_UNSURE = "it is not certain that several workers share this stream's samples without repeating any"

_Digest = bytes
_Read = tuple[int, _Digest]


def one_worker_only(data: LoaderParts) -> str | None:
    """Why this data may have one worker at most.

    The first samples are read in this process, twice (the second time with other random numbers), and from two real
    workers. Random states are put back; a stream whose state is kept elsewhere has been read further.

    Args:
        data: Resolved parts.

    Returns:
        One sentence; None for map-style data, and for a stream whose workers were seen to share its samples.

    Raises:
        TaskError: The stream can be read only once.
    """
    if not data.iterable:
        return None
    try:
        (first, begun), (again, anew) = _read_here(data, seed=0), _read_here(data, seed=1)
    except TimeoutError:
        return f"{_UNSURE}: its first samples take longer than {_READING_S:.0f} s"
    if first and (not again or _goes_on(begun, anew)):
        raise TaskError(
            f"dataset ({qualified_name(type(data.dataset))}) can be read only once: measuring would use it up.",
            "Pass a factory instead: a function without arguments that makes the dataset anew.",
        )
    if first != again:
        return f"{_UNSURE}: its order is random"
    if len(set(first)) < len(first):
        return f"{_UNSURE}: its samples are alike"
    try:
        read = _read_by_workers(data)
    except Exception as error:  # whatever a stream of the user's raises in a worker
        return f"{_UNSURE}: with two workers it raised {type(error).__name__}"
    return _judged(first, read)


def _goes_on(first: Iterator[Any], again: Iterator[Any]) -> bool:
    """Whether a second reading goes on where the first ended, from a generator or the like that the stream holds.

    An iterator of a class of its own may start anew by being asked for (as one with persistent workers does).
    """
    own = type(first).__module__ not in ("builtins", "itertools")
    return first is again and not own and not isinstance(first, itertools.cycle)


def _judged(first: list[_Digest], read: list[_Read]) -> str | None:
    by_worker = [{digest for worker, digest in read if worker == number} for number in (0, 1)]
    if by_worker[0] & by_worker[1]:
        return _NOT_SHARDED
    seen = by_worker[0] | by_worker[1]
    whole = len(first) < 2 * _SAMPLES  # then both readings went to the end, and must be the same samples
    if len(seen) < len(read) or not first or first[0] not in seen or (whole and seen != set(first)):
        return _UNSURE
    return None


def _read_here(data: LoaderParts, *, seed: int) -> tuple[list[_Digest], Iterator[Any]]:
    """The first samples, and what they were read from."""
    digests: list[_Digest] = []
    with rng_kept():
        if seed:
            _reseed(seed)
        began = time.monotonic()
        iterator = iter(data.dataset)
        for sample in itertools.islice(iterator, 2 * _SAMPLES):
            digests.append(_digest(sample))
            if time.monotonic() - began > _READING_S:
                raise TimeoutError
    return digests, iterator


def _reseed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _read_by_workers(data: LoaderParts) -> list[_Read]:
    loader: DataLoader[Any] = DataLoader(
        data.dataset,
        batch_size=None,
        collate_fn=_worker_and_digest,
        num_workers=2,
        worker_init_fn=data.worker_init_fn,
        multiprocessing_context=data.multiprocessing_context,
        timeout=_WORKER_TIMEOUT_S,
        generator=torch.Generator(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about workers and lengths: what is being found out
        iterator: Any = iter(loader)
        try:
            return list(itertools.islice(iterator, 2 * _SAMPLES))
        finally:
            iterator._shutdown_workers()


def _worker_and_digest(sample: Any) -> _Read:
    info = get_worker_info()
    return (0 if info is None else int(info.id)), _digest(sample)


def _digest(sample: Any) -> _Digest:
    """Equal for equal samples, whichever process made them."""
    found = hashlib.sha256()
    for part in _parts(sample, DEPTH):
        found.update(part)
    return found.digest()


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, SCALARS):
        yield repr(value).encode()
    elif depth and (inner := children(value)):
        yield f"{type(value).__qualname__}{len(inner)}".encode()
        for item in inner:
            yield from _parts(item, depth - 1)
    else:
        yield pickle.dumps(value)
