"""Carries a task into another process: one pickle, large memory beside it in files that the child maps.

Model, optimizer, sampler and dataset travel in *one* pickle, or the parameters the optimizer holds would no longer
be those of the model. Memory of more than ``LARGE_BYTES`` goes to a file of its own, mapped copy-on-write by the
child: nothing is copied until it is written to, and what is read there is the page cache the parent just filled.
"""

from __future__ import annotations

import ctypes
import dataclasses
import io
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import IO, Any

import cloudpickle
import torch
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from autotune.errors import TaskError
from autotune.sandbox import arrival

__all__ = ["LARGE_BYTES", "dump"]

LARGE_BYTES = 1 << 20
"""Memory from this size on is mapped instead of copied through the pickle."""

_WRITE_BYTES = 1 << 26
_FACTORY = "Pass a factory instead (a function without arguments that makes it): it is called in the isolated process."


def dump(task: object, directory: Path, *, limit_bytes: int, main: ModuleType | None = None) -> int:
    """Writes ``task`` into ``directory``; ``arrival.load`` reads it there.

    Tensors on an accelerator travel through host memory, one storage at a time. Arrays mapped from a file are not
    copied: the child maps the same file.

    Args:
        task: The task, as one object.
        directory: An existing private folder.
        limit_bytes: The most that may be copied, all together.
        main: The ``__main__`` module the child can import, whose classes then travel by name; None: they travel
            by value.

    Returns:
        Bytes written.

    Raises:
        TaskError: It cannot be pickled, is larger than ``limit_bytes``, or there is no room for it on the disk.
    """
    tally = _Tally(limit_bytes)
    with _private_file(directory / arrival.PICKLE) as file:
        pickler = _TaskPickler(_Counting(file, tally), tally, main)
        try:
            pickler.dump(task)
        except TaskError:
            raise
        except OSError as error:
            raise _no_room(tally.bytes, directory) from error
        except Exception as error:  # whatever a __reduce__ of the user raises
            raise _unpicklable(task, error) from error
    _check_room(tally.bytes, directory)
    try:
        for name, write in pickler.large.items():
            with _private_file(directory / name) as file:
                write(file)
    except OSError as error:
        raise _no_room(tally.bytes, directory) from error
    return tally.bytes


@dataclasses.dataclass(slots=True)
class _Tally:
    """Adds up what will be copied, so that too much is refused before the large parts are written."""

    limit_bytes: int
    bytes: int = 0

    def add(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self.limit_bytes:
            raise TaskError(
                f"The model and data hold more than {self.limit_bytes / 2**30:.2f} GiB in memory, too much to copy "
                "into an isolated process here (a quarter of the free RAM).",
                _FACTORY,
            )


class _Counting(io.RawIOBase):
    def __init__(self, file: IO[bytes], tally: _Tally) -> None:
        self._file, self._tally = file, tally

    def write(self, data: Any) -> int:
        self._tally.add(memoryview(data).nbytes)
        return self._file.write(data)


class _TaskPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Takes large memory out of the stream; keeps storages shared by several tensors shared.

    The memory is only noted, and written when the whole is known to fit.
    """

    def __init__(self, file: _Counting, tally: _Tally, main: ModuleType | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._in_band)
        self.large: dict[str, Callable[[IO[bytes]], object]] = {}
        self._tally, self._main = tally, main
        self._storages: dict[int, int] = {}
        self._buffers = 0

    def reducer_override(self, obj: Any) -> Any:
        """Called by the pickler for everything but the simplest builtin types."""
        if isinstance(obj, torch.storage.TypedStorage):
            return arrival.typed_storage, (obj._untyped_storage, obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            return self._storage(obj)
        if obj is torch._utils._rebuild_tensor_v3:
            return arrival.untyped_rebuilder, ()
        if self._main is not None and isinstance(obj, type | FunctionType) and _found_in(self._main, obj):
            return NotImplemented  # by name
        special = _mapped_array(obj) or _parametrized_module(obj)
        return super().reducer_override(obj) if special is None else special

    def _storage(self, storage: torch.UntypedStorage) -> Any:
        known = self._storages.get(storage._cdata)
        if known is not None:
            return arrival.known_storage, (known,)
        index = self._storages[storage._cdata] = len(self._storages)
        size, device = storage.nbytes(), str(storage.device)
        if size < LARGE_BYTES:
            data = b"".join(bytes(part) for part in _host_parts(storage))
            return arrival.small_storage, (index, data, device, storage.is_shared() and device == "cpu")
        self._tally.add(size)
        self.large[arrival.storage_name(index)] = lambda file: _write_storage(storage, file)
        return arrival.large_storage, (index, size, device)

    def _in_band(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE_BYTES:
            return True
        self._tally.add(raw.nbytes)
        name = arrival.buffer_name(self._buffers, readonly=raw.readonly)
        self._buffers += 1
        self.large[name] = lambda file: file.write(raw)
        return False


def _write_storage(storage: torch.UntypedStorage, file: IO[bytes]) -> None:
    for part in _host_parts(storage):
        file.write(part)


def _host_parts(storage: torch.UntypedStorage) -> Iterator[memoryview]:
    """The bytes of ``storage``, in parts small enough that host memory does not have to hold it twice."""
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    for start in range(0, len(flat), _WRITE_BYTES):
        host = flat[start : start + _WRITE_BYTES].cpu()
        yield memoryview((ctypes.c_char * len(host)).from_address(host.data_ptr())).cast("B")


def _mapped_array(obj: Any) -> Any:
    """How to map the same file again, if ``obj`` is a numpy array (or a view of one) mapped from a file."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(obj, numpy.ndarray):
        return None
    root = obj
    while isinstance(root.base, numpy.ndarray):
        root = root.base
    filename = getattr(root, "filename", None)
    if not isinstance(root, numpy.memmap) or filename is None or not os.path.isfile(filename):
        return None
    if root.mode == "c":  # may have been written to, which the file does not show
        return None
    start = obj.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    whole = (os.path.abspath(filename), root.offset, root.nbytes)
    view = (start, obj.dtype, obj.shape, obj.strides, bool(obj.flags.writeable))
    return arrival.mapped_array, (*whole, *view, type(obj) is numpy.memmap)


def _parametrized_module(obj: Any) -> Any:
    """How to make ``obj`` again, if it is a module with parametrizations (``weight_norm`` and the like).

    torch gives each such module a class of its own, which refuses to be pickled: so what travels is the class below
    it, the attributes, and the names of the parametrized tensors.
    """
    if not isinstance(obj, torch.nn.Module) or type(obj).__module__ != "torch.nn.utils.parametrize":
        return None
    if not is_parametrized(obj) or "__getstate__" not in vars(type(obj)):
        return None
    base = type_before_parametrizations(obj)
    own = getattr(base, "__getstate__", None)
    state = obj.__dict__ if own is None or own is getattr(object, "__getstate__", None) else own(obj)
    names: Any = obj.parametrizations
    return arrival.parametrized_module, (base, tuple(names)), state


def _found_in(module: ModuleType, obj: type | FunctionType) -> bool:
    if obj.__module__ != "__main__":
        return False
    found: Any = module
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is obj


def _private_file(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600), "wb")


def _check_room(needed_bytes: int, directory: Path) -> None:
    if shutil.disk_usage(directory).free < needed_bytes:
        raise _no_room(needed_bytes, directory)


def _no_room(needed_bytes: int, directory: Path) -> TaskError:
    return TaskError(
        f"The model and data ({needed_bytes / 2**30:.2f} GiB) could not be written to {directory.parent}.",
        f"Make room there, point TMPDIR to a larger disk, or: {_FACTORY}",
    )


def _unpicklable(task: object, error: Exception) -> TaskError:
    part = next((name for name, value in _parts(task) if not _picklable(value)), "task")
    return TaskError(
        f"{part} cannot be copied into an isolated process: {type(error).__name__}: {error}.",
        f"{_FACTORY} Or use isolate=False, with the limits that has.",
    )


def _parts(task: object) -> Iterator[tuple[str, Any]]:
    for name, value in getattr(task, "__dict__", {}).items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        else:
            yield name, value


def _picklable(value: object) -> bool:
    tally = _Tally(sys.maxsize)
    try:
        with open(os.devnull, "wb") as nowhere:
            _TaskPickler(_Counting(nowhere, tally), tally, None).dump(value)
    except Exception:  # only asked in order to name the part; the error itself is already on its way
        return False
    return True
