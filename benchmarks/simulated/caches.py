"""What need not be done again: compiled graphs on the disk, and cudnn's choices in the process."""

from __future__ import annotations

from autotune.settings import Settings
from benchmarks.simulated.model import COMPILE_MODES
from benchmarks.simulated.task import SimulatedTask

__all__ = ["Caches"]

_CACHED_COMPILE_S = 3.0
_OTHER_BATCH_SHARE = 0.7  # another batch size finds some kernels in the cache

Graph = tuple[object, ...]


class Caches:
    """Of one run.

    Args:
        task: What compiling and choosing take for it.
    """

    def __init__(self, task: SimulatedTask) -> None:
        self._task = task
        self._on_disk: set[Graph] = set()
        self._chosen: set[Graph] = set()

    def new_process(self) -> None:
        """Forgets what the last process knew."""
        self._chosen.clear()

    def compile_s(self, settings: Settings, use: str = "training") -> float:
        """Seconds until the first step is compiled; with dropout off (another ``use``) it is another graph."""
        if settings.compile_mode is None:
            return 0.0
        graph = (*_graph(settings), use)
        if (*graph, settings.batch_size) in self._on_disk:
            return _CACHED_COMPILE_S
        cold_s = float(self._task.compile_s[COMPILE_MODES.index(settings.compile_mode)])
        return cold_s * (_OTHER_BATCH_SHARE if _graph(settings) in self._on_disk else 1.0)

    def compiled(self, settings: Settings, use: str = "training") -> None:
        """Keeps what was compiled."""
        graph = _graph(settings)
        self._on_disk |= {graph, (*graph, use, settings.batch_size)}

    def cudnn_s(self, settings: Settings) -> float:
        """Seconds that cudnn's trials take now."""
        shape = (*_graph(settings), settings.batch_size)
        if not settings.cudnn_benchmark or shape in self._chosen:
            return 0.0
        self._chosen.add(shape)
        return self._task.benchmark_s


def _graph(settings: Settings) -> Graph:
    """What compiled code is for, whatever the batch."""
    return (settings.compile_mode, settings.precision, settings.channels_last, settings.activation_checkpointing)
