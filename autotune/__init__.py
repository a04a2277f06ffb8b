"""Drop-in auto-tuner for PyTorch training speed: measured settings, proven faster, handed back ready to use.

Importing this package loads neither torch nor optuna and touches no accelerator; each public name is
loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.api import autotune
    from autotune.api.largest import largest_batch
    from autotune.build.train_step import TrainStep
    from autotune.config import TunedConfig
    from autotune.settings import Settings
    from autotune.space import Space
    from autotune.task import Task

__all__ = ["Settings", "Space", "Task", "TrainStep", "TunedConfig", "autotune", "largest_batch"]

_HOMES = {
    "Settings": "autotune.settings",
    "Space": "autotune.space",
    "Task": "autotune.task",
    "TrainStep": "autotune.build.train_step",
    "TunedConfig": "autotune.config",
    "autotune": "autotune.api",
    "largest_batch": "autotune.api.largest",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-autotune")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
