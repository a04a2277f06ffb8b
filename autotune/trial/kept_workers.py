"""The last trial's loader, its workers alive: starting them costs, and many a next trial needs the same ones.

Its workers load ahead until their stock is full and then wait; whoever comes next finds that stock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from autotune.settings import Settings
from autotune.trial.stream import BatchStream

__all__ = ["KeptWorkers"]

_LOADER_KNOBS = (
    "batch_size",
    "num_workers",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory",
    "multiprocessing_context",
    "length_grouped",
)


class KeptWorkers:
    """Holds at most one loader.

    Args:
        end: Ends a loader: its workers, and what is to be noted of it.
    """

    def __init__(self, end: Callable[[DataLoader[Any], BatchStream, Settings], None]) -> None:
        self._end = end
        self._held: tuple[DataLoader[Any], BatchStream, Settings] | None = None

    def keep(self, loader: DataLoader[Any], stream: BatchStream, settings: Settings) -> None:
        """Holds ``loader`` if it has workers; ends it otherwise."""
        self.end()
        if settings.num_workers == 0:
            self._end(loader, stream, settings)
        else:
            self._held = loader, stream, settings

    def end_unless(self, settings: Settings) -> None:
        """Ends what is held unless it is the loader that ``settings`` describe, and all its workers live."""
        if self._held is not None:
            _, stream, held = self._held
            if _loader_knobs(held) != _loader_knobs(settings) or not stream.workers_live:
                self.end()

    def take(self, settings: Settings) -> tuple[DataLoader[Any], BatchStream] | None:
        """The loader held, if it is the one that ``settings`` describe; any other is ended."""
        self.end_unless(settings)
        if self._held is None:
            return None
        (loader, stream, _), self._held = self._held, None
        return loader, stream

    def end(self) -> None:
        """Ends what is held."""
        if self._held is not None:
            held, self._held = self._held, None
            self._end(*held)


def _loader_knobs(settings: Settings) -> tuple[Any, ...]:
    return tuple(getattr(settings, name) for name in _LOADER_KNOBS)
