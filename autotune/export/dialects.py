"""The dialects by name, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from autotune.errors import SettingsError
from autotune.export.record import Export
from autotune.export.wanted import Wanted

if TYPE_CHECKING:
    from autotune.config import TunedConfig

__all__ = ["DIALECTS", "to"]

DIALECTS: Mapping[str, str] = {
    "plain": "a training script in plain PyTorch",
    "lightning": "arguments of Lightning's Trainer and of the DataLoader",
    "hf": "arguments of Hugging Face's TrainingArguments",
    "accelerate": "a configuration file of Accelerate",
    "deepspeed": "a configuration file of DeepSpeed",
    "timm": "arguments of timm's train.py",
    "fastai": "arguments of fastai's DataLoaders and callbacks of its Learner",
    "torchtitan": "a configuration file of torchtitan 0.2 and arguments of 0.3",
    "env": "environment variables",
}
"""What each one gives."""


def to(tuned: TunedConfig, dialect: str) -> Export:
    """The settings in another library's words; the library itself is not needed.

    Args:
        tuned: A tuned config, fresh or loaded. ``tuned.keep_batch()`` exports the same-batch answer.
        dialect: One of ``DIALECTS``.

    Returns:
        Values, text and files; what the dialect cannot say is in ``not_expressed``, never left out in silence.

    Raises:
        SettingsError: There is no such dialect.
    """
    if dialect not in DIALECTS:
        raise SettingsError(f"There is no dialect {dialect!r}.", f"There are: {', '.join(DIALECTS)}.")
    export: Export = import_module(f"autotune.export.{dialect}").export(Wanted(tuned))
    return export
