"""Tuning inside the trainers of other libraries.

``AutotuneCallback`` goes where Lightning's ``BatchSizeFinder`` would; ``autotune_trainer`` takes a Hugging Face
``Trainer``. Each library is imported with its own name here, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.integrations.hugging_face import autotune_trainer
    from autotune.integrations.lightning_callback import AutotuneCallback

__all__ = ["AutotuneCallback", "autotune_trainer"]

_HOMES = {
    "AutotuneCallback": "autotune.integrations.lightning_callback",
    "autotune_trainer": "autotune.integrations.hugging_face",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'autotune.integrations' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
