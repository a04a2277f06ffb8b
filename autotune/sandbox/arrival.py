"""The receiving end of ``transport``: makes the task again from its pickle and the files beside it."""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import parametrize

__all__ = ["PICKLE", "load"]

PICKLE = "task.pickle"
"""Name of the file with the pickle."""


class _Delivery:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.storages: dict[int, torch.UntypedStorage] = {}


_current: ContextVar[_Delivery] = ContextVar("current delivery")


def load(directory: Path) -> Any:
    """The task that ``transport.dump`` wrote; each call makes an independent one, sharing no memory with others.

    Args:
        directory: The folder given to ``dump``. Its contents are pickles: only ever one that this user's own
            process wrote.
    """
    token = _current.set(_Delivery(directory))
    try:
        with (directory / PICKLE).open("rb") as file:
            return pickle.load(file, buffers=_buffers(directory))
    finally:
        _current.reset(token)


def storage_name(index: int) -> str:
    """File name of a large storage."""
    return f"storage-{index}"


def buffer_name(index: int, *, readonly: bool) -> str:
    """File name of a large buffer."""
    return f"buffer-{index}{'-readonly' if readonly else ''}"


def typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    """What tensors are rebuilt from."""
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def untyped_rebuilder() -> Callable[..., torch.Tensor]:
    """``torch._utils._rebuild_tensor_v3`` for a storage that, unlike when ``torch.load`` calls it, is untyped."""

    def rebuild(storage: torch.UntypedStorage, *metadata: Any) -> torch.Tensor:
        typed = typed_storage(storage, torch.uint8)
        return torch._utils._rebuild_tensor_v3(typed, *metadata)  # type: ignore[no-any-return, no-untyped-call]

    return rebuild


def small_storage(index: int, data: bytes, device: str, shared: bool) -> torch.UntypedStorage:
    """A storage whose bytes came with the pickle."""
    host = torch.UntypedStorage(len(data))  # type: ignore[no-untyped-call]
    if data:
        flat = torch.empty(0, dtype=torch.uint8).set_(host)
        flat.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    if shared:
        host.share_memory_()
    return _keep(index, _placed(host, device))


def large_storage(index: int, size: int, device: str) -> torch.UntypedStorage:
    """A storage in a file of its own, mapped copy-on-write."""
    path = _current.get().directory / storage_name(index)
    mapped: Any = torch.UntypedStorage.from_file(str(path), False, size)
    return _keep(index, _placed(mapped, device))


def known_storage(index: int) -> torch.UntypedStorage:
    """A storage that another tensor brought along."""
    return _current.get().storages[index]


def mapped_array(
    filename: str,
    offset: int,
    size: int,
    start: int,
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
    memmap: bool,
) -> Any:
    """A numpy array over a file that the user mapped; writing changes the child's copy only."""
    import numpy as np

    root = np.memmap(filename, dtype=np.uint8, mode="c" if writeable else "r", offset=offset, shape=(size,))
    view: Any = np.ndarray(shape, dtype, buffer=root, offset=start, strides=strides)
    return view.view(np.memmap) if memmap else view


def parametrized_module(base: type[torch.nn.Module], names: tuple[str, ...]) -> torch.nn.Module:
    """A module of a class of its own, as parametrized ones are, still without attributes.

    Args:
        base: Class below it.
        names: Parametrized tensors.
    """
    module = base.__new__(base)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def _keep(index: int, storage: torch.UntypedStorage) -> torch.UntypedStorage:
    _current.get().storages[index] = storage
    return storage


def _placed(host: torch.UntypedStorage, device: str) -> torch.UntypedStorage:
    if device == "cpu":
        return host
    flat = torch.empty(0, dtype=torch.uint8).set_(host)
    return flat.to(device).untyped_storage()


def _buffers(directory: Path) -> Iterator[memoryview]:
    index = 0
    while True:
        writable = directory / buffer_name(index, readonly=False)
        path = writable if writable.exists() else directory / buffer_name(index, readonly=True)
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        yield mapped if path is writable else mapped.toreadonly()
        index += 1
