"""Values, classes and functions described in JSON, the same in every process: no addresses, no order of sets."""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from autotune.task.names import qualified_name

__all__ = ["identity", "tensor_identity", "type_identity"]

_LONGEST = 64
"""Longer lists count by their length only."""
_KNOWN_BY_NAME = frozenset({"torch", "numpy", *sys.stdlib_module_names})
"""Top-level modules whose code is not hashed; their versions belong to the hardware's fingerprint."""
_DATA = (bool, int, float, complex, str, bytes, type(None))


def identity(value: Any, depth: int) -> Any:
    """What ``value`` is, in JSON.

    Tensors and arrays count by type and shape; functions and classes by name and compiled code, wherever they were
    imported from; other objects by class and public attributes, except dicts, which are mostly caches.

    Args:
        value: Anything.
        depth: How many levels of attributes, items and closures to follow.

    Returns:
        A JSON value.
    """
    if isinstance(value, enum.Enum):
        return f"{_name(type(value))}.{value.name}"
    if isinstance(value, _DATA):
        return value if value is None or isinstance(value, (bool, int, str)) else repr(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, type):
        return type_identity(value)
    if isinstance(value, torch.Tensor) or (
        hasattr(value, "dtype") and isinstance(getattr(value, "shape", None), tuple)
    ):
        return tensor_identity(value)
    if isinstance(value, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        return _function_identity(value, depth)
    if isinstance(value, (list, tuple)):
        if not depth or len(value) > _LONGEST:
            return [_name(type(value)), len(value)]
        return [identity(item, depth - 1) for item in value]
    attributes = _public_attributes(value) if depth else {}
    return [type_identity(type(value)), {key: identity(item, depth - 1) for key, item in attributes.items()}]


def tensor_identity(tensor: Any) -> list[Any]:
    """Type and shape of a tensor or array.

    Args:
        tensor: Anything with ``dtype`` and ``shape``.

    Returns:
        Such as ``["float32", [64, 3]]``.
    """
    return [str(tensor.dtype).removeprefix("torch."), [int(size) for size in tensor.shape]]


def type_identity(cls: type) -> Any:
    """Name of a class, with a hash of its methods and those it inherits unless torch, numpy or python own it.

    Args:
        cls: Any class.

    Returns:
        A JSON value.
    """
    code = [
        [name, _code_identity(function.__code__)]
        for owner in cls.__mro__
        if not _is_known(owner)
        for name, item in sorted(vars(owner).items())
        if isinstance(function := _plain_function(item), FunctionType)
    ]
    return [_name(cls), _digest(code)] if code else _name(cls)


def _name(value: Any) -> str:
    """Without the module where that is the user's: a script that runs is ``__main__``, and ``train`` when imported."""
    return qualified_name(value) if _is_known(value) else str(value.__qualname__)


def _is_known(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in _KNOWN_BY_NAME


def _plain_function(item: Any) -> Any:
    inner = getattr(item, "__func__", None) or getattr(item, "fget", None) or item
    return inspect.unwrap(inner) if callable(inner) else inner


def _public_attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    if isinstance(value, nn.Module):  # keeps its parts in private dicts
        found = {**found, **dict(value.named_children()), "training": None}
    return {
        key: item
        for key, item in found.items()
        if not key.startswith("_") and not isinstance(item, (Mapping, ModuleType))
    }


def _function_identity(function: Any, depth: int) -> Any:
    if isinstance(function, functools.partial):
        arguments = [identity(item, depth - 1) for item in function.args] if depth else []
        keywords = {key: identity(item, depth - 1) for key, item in function.keywords.items()} if depth else {}
        return ["partial", identity(function.func, depth), arguments, keywords]
    if isinstance(function, BuiltinFunctionType):
        return f"{function.__module__}.{function.__qualname__}"
    if isinstance(function, MethodType):
        owner = identity(function.__self__, depth - 1) if depth else _name(type(function.__self__))
        return [_function_identity(function.__func__, depth), owner]
    if _is_known(function):
        return qualified_name(function)
    used = {}
    if depth:
        used = {key: identity(item, depth - 1) for key, item in {**_globals(function), **_closure(function)}.items()}
    return [_name(function), _digest(_code_identity(function.__code__)), used]


def _globals(function: FunctionType) -> dict[str, Any]:
    """The classes, functions and plain values of its module that a function names."""
    kinds = (type, FunctionType, functools.partial, *_DATA)
    found = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    return {name: item for name, item in found.items() if isinstance(item, kinds) and not name.startswith("__")}


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}


def _is_filled(cell: CellType) -> bool:
    return cell != CellType()


def _code_identity(code: CodeType) -> list[Any]:
    constants = [_constant_identity(constant) for constant in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _constant_identity(constant: Any) -> Any:
    if isinstance(constant, CodeType):
        return _code_identity(constant)
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
