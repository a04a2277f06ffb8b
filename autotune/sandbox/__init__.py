"""A child process that may run out of memory, hang, crash or be killed, while the caller notices nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.sandbox.in_process import InProcess
    from autotune.sandbox.sandbox import Sandbox

__all__ = ["InProcess", "Sandbox"]

_HOMES = {"InProcess": "autotune.sandbox.in_process", "Sandbox": "autotune.sandbox.sandbox"}


def __getattr__(name: str) -> Any:
    # Lazy: the child enters through this package and must set its import path before it loads torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune.sandbox' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
