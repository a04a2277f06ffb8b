"""What need not be done again: compiled graphs on the disk and in the process, and cudnn's choices in the process."""

from __future__ import annotations

from autotune.settings import Settings
from benchmarks.simulated.model import COMPILE_MODES
from benchmarks.simulated.task import SimulatedTask

__all__ = ["Caches"]

_CACHED_COMPILE_S = 3.0
_OTHER_BATCH_SHARE = 0.7  # of the time with nothing cached: another batch size finds some kernels
_COMPARISON_SHARE = 0.25  # the same with dropout off, after training was compiled; measured on a CPU: 0.21 to 0.23

Graph = tuple[object, ...]


class Caches:
    """Of one run.

    Args:
        task: What compiling and choosing take for it.
    """

    def __init__(self, task: SimulatedTask) -> None:
        self._task = task
        self._on_disk: set[Graph] = set()
        self._in_process: set[Graph] = set()
        self._entered: Settings | None = None
        self._chosen: set[Graph] = set()

    def new_process(self) -> None:
        """Forgets what the last process knew."""
        self._chosen.clear()
        self._in_process.clear()
        self._entered = None

    def compiled_s(self, settings: Settings, compared_rows: int | None = None) -> float:
        """Seconds until the first step is compiled, which it is then; the process keeps the graphs of one setting.

        Args:
            settings: Of the trial.
            compared_rows: Rows of a comparison of numerics, whose graph is another one.
        """
        if settings.compile_mode is None:
            return 0.0
        bare = settings.replace(num_workers=0, pin_memory=False, gradient_accumulation_steps=1)
        if bare != self._entered:
            self._in_process.clear()
            self._entered = bare
        kernels = _kernels(settings)
        graph = (*kernels, compared_rows, compared_rows or settings.batch_size)
        seconds = self._seconds(settings, kernels, graph, compared=compared_rows is not None)
        self._in_process.add(graph)
        self._on_disk |= {kernels, graph}
        return seconds

    def cold_compile_s(self, settings: Settings) -> float:
        """Seconds with nothing cached."""
        return float(self._task.compile_s[COMPILE_MODES.index(settings.compile_mode)])

    def cudnn_s(self, settings: Settings) -> float:
        """Seconds that cudnn's trials take now."""
        shape = (*_kernels(settings), settings.batch_size)
        if not settings.cudnn_benchmark or shape in self._chosen:
            return 0.0
        self._chosen.add(shape)
        return self._task.benchmark_s

    def _seconds(self, settings: Settings, kernels: Graph, graph: Graph, *, compared: bool) -> float:
        if graph in self._in_process:
            return 0.0
        if graph in self._on_disk:
            return _CACHED_COMPILE_S
        share = 1.0
        if kernels in self._on_disk:
            share = _COMPARISON_SHARE if compared else _OTHER_BATCH_SHARE
        return share * self.cold_compile_s(settings)


def _kernels(settings: Settings) -> Graph:
    """What compiled code is for, whatever the batch."""
    return (settings.compile_mode, settings.precision, settings.channels_last, settings.activation_checkpointing)
