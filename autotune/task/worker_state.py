"""What a dataset holds that workers must not share: its own random generators, open files, connections and threads."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import random
import socket
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Literal

import torch

from autotune.task.names import qualified_name

__all__ = ["SharedState", "shared_states"]

_DEPTH = 6
"""Levels of attributes and items: Subset, ConcatDataset, its datasets, their transforms, the parts of these."""
_LONGEST = 64
"""Items looked at of a list or mapping; longer ones are looked at last, for they are likely to hold data."""
_MOST_VISITED = 2000
_NUMPY_GENERATORS = ("Generator", "RandomState", "BitGenerator")
_PLAIN = (str, bytes, bytearray, bool, int, float, complex, type(None), type, ModuleType, torch.Tensor)

Kind = Literal["generator", "handle", "thread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedState:
    """Something that every worker would get a copy of, but must not."""

    where: str
    """Such as ``dataset.transform.rng``."""
    kind: Kind
    type_name: str

    @property
    def reason(self) -> str:
        """Half a sentence with the harm and the remedy."""
        if self.kind == "generator":
            return (
                f"{self.where} is a {self.type_name}: every worker would start with a copy of it and draw the same "
                "numbers; draw from torch's global generator instead, or seed it anew in a worker_init_fn"
            )
        if self.kind == "thread":
            return (
                f"{self.where} is a running {self.type_name}: forked workers would have a copy that does not run, and "
                "wait for it in vain; start it when a worker first needs it, or in a worker_init_fn"
            )
        return (
            f"{self.where} is an open {self.type_name}: forked workers would share it and read from each other's "
            "positions; open it when a worker first needs it, or in a worker_init_fn"
        )


def shared_states(**roots: Any) -> tuple[SharedState, ...]:
    """Look through objects for what workers must not share; nothing is called, opened or read.

    Args:
        **roots: Objects by the names under which to report them.

    Returns:
        What was found in attributes, items, closures and partial arguments, at most a few levels down.
    """
    seen: set[int] = set()
    found: list[SharedState] = []
    for name, value in roots.items():
        found += _found(value, name, _DEPTH, seen)
    return tuple(found)


def _found(value: Any, where: str, depth: int, seen: set[int]) -> Iterator[SharedState]:
    if isinstance(value, _PLAIN) or id(value) in seen or len(seen) >= _MOST_VISITED:
        return
    seen.add(id(value))
    kind = _kind(value)
    if kind is not None:
        yield SharedState(where=where, kind=kind, type_name=qualified_name(type(value)).removeprefix("_"))
    elif depth:
        for name, item in _parts(value):
            yield from _found(item, f"{where}{name}", depth - 1, seen)


def _kind(value: Any) -> Kind | None:
    if isinstance(value, (torch.Generator, random.Random)):
        return None if isinstance(value, random.SystemRandom) else "generator"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, tuple(getattr(numpy.random, name) for name in _NUMPY_GENERATORS)):
        return "generator"
    if _is_running(value):
        return "thread"
    return "handle" if _is_open(value) else None


def _is_running(value: Any) -> bool:
    """Threads, and pools of threads or processes once they have any."""
    if isinstance(value, threading.Thread):
        return value.is_alive()
    if isinstance(value, Executor):
        return bool(getattr(value, "_threads", None) or getattr(value, "_processes", None))
    pool = sys.modules.get("multiprocessing.pool")
    return pool is not None and isinstance(value, pool.Pool)


def _is_open(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return _is_open_file(value)
    if isinstance(value, zipfile.ZipFile):
        return value.fp is not None and _is_open_file(value.fp)
    if isinstance(value, tarfile.TarFile):
        return _is_open_file(value.fileobj)
    if isinstance(value, socket.socket):
        return value.fileno() != -1
    sqlite3 = sys.modules.get("sqlite3")
    if sqlite3 is not None and isinstance(value, (sqlite3.Connection, sqlite3.Cursor)):
        return True
    return type(value).__module__.partition(".")[0] == "h5py" and hasattr(value, "id") and bool(value)


def _is_open_file(file: Any) -> bool:
    """Whether it has a place in the file that reading moves; files in memory and those written to do no harm."""
    if file in (sys.stdin, sys.__stdin__):
        return False
    try:
        return not file.closed and file.readable() and file.fileno() >= 0
    except (OSError, ValueError, AttributeError):  # io.UnsupportedOperation is both: it is not a file of the system
        return False


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((f"({index})", item) for index, item in enumerate(value.args))
        yield from ((f"({name})", item) for name, item in value.keywords.items())
        yield "", value.func
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        yield from ((f".{name}", cell.cell_contents) for name, cell in cells if _is_filled(cell))
    elif not type(value).__module__.startswith(("logging", "threading")):
        yield from sorted((*_items(value), *_attributes(value)), key=lambda part: _is_long(part[1]))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in itertools.islice(value.items(), _LONGEST))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{index}]", item) for index, item in enumerate(itertools.islice(value, _LONGEST)))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", item) for name, item in dict(getattr(value, "__dict__", {})).items())
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            descriptor = vars(cls).get(_mangled(cls, name))
            if isinstance(descriptor, MemberDescriptorType):  # reading it runs no code of the user's
                with contextlib.suppress(AttributeError):  # not filled
                    yield f".{name}", descriptor.__get__(value)


def _mangled(cls: type, name: str) -> str:
    private = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if private else name


def _is_long(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple, set, frozenset)) and len(value) > _LONGEST


def _is_filled(cell: CellType) -> bool:
    return cell != CellType()
