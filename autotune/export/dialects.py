"""The dialects by name, each imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from autotune.errors import SettingsError
from autotune.export.names import DIALECTS
from autotune.export.record import Export, TaskSource
from autotune.export.wanted import Wanted

if TYPE_CHECKING:
    from autotune.config import TunedConfig

__all__ = ["to"]


def to(tuned: TunedConfig, dialect: str, *, source: TaskSource | None = None) -> Export:
    """The settings in another library's words; the library itself is not needed.

    Args:
        tuned: A tuned config, fresh or loaded. ``tuned.keep_batch()`` exports the same-batch answer.
        dialect: One of ``DIALECTS``.
        source: The code that the config's task comes from, so that "plain" can take model, data and loss from it.

    Returns:
        Values, text and files; what the dialect cannot say is in ``not_expressed``, never left out in silence.

    Raises:
        SettingsError: There is no such dialect.
    """
    if dialect not in DIALECTS:
        raise SettingsError(f"There is no dialect {dialect!r}.", f"There are: {', '.join(DIALECTS)}.")
    export: Export = import_module(f"autotune.export.{dialect}").export(Wanted(tuned, source))
    return export
