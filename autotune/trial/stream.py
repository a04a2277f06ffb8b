"""An endless stream of batches out of a loader, with what each batch cost and where epochs end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from autotune.errors import TaskError

__all__ = ["BatchStream", "chunk_batches"]


_QUEUES = ("_worker_result_queue", "_data_queue")  # the same one unless batches are pinned in between


class BatchStream:
    """Batches of ``loader``, epoch after epoch.

    Args:
        loader: What is iterated; each pass is an epoch.
        on_epoch_end: Called when a pass ends, as the user's loop would (``TrainStep.flush``).
        clock: Seconds, monotonic.
    """

    def __init__(
        self, loader: Iterable[Any], *, on_epoch_end: Callable[[], object], clock: Callable[[], float]
    ) -> None:
        self._loader = loader
        self._on_epoch_end = on_epoch_end
        self._clock = clock
        self._batches: Iterator[Any] | None = None
        self.epoch_ends = 0
        self.batches = 0
        self.workers_start_s = 0.0
        self.first_batch_s = 0.0

    def take(self) -> tuple[Any, float]:
        """The next batch and the seconds spent waiting for it.

        Raises:
            TaskError: A whole pass yields no batch.
        """
        begin = self._clock()
        if self._batches is None:
            return self._first(), self._clock() - begin
        try:
            batch = next(self._batches)
        except StopIteration:
            self.epoch_ends += 1
            self._on_epoch_end()
            batch = self._restart()
        self.batches += 1
        return batch, self._clock() - begin

    def ready(self) -> int | None:
        """Batches that lie loaded and were not taken yet; None where that cannot be told (queues on macOS)."""
        running = self._batches
        # torch has no public names for these
        queues = {id(queue): queue for name in _QUEUES if (queue := getattr(running, name, None)) is not None}
        if not queues:
            return 0
        fetched = sum(len(task) > 1 for task in getattr(running, "_task_info", {}).values())
        try:
            return fetched + sum(int(queue.qsize()) for queue in queues.values())
        except NotImplementedError:
            return None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The loader's worker processes of the running pass."""
        workers = getattr(self._batches, "_workers", ())  # torch has no public name for them
        return tuple(worker.pid for worker in workers if worker.pid is not None)

    def close(self) -> None:
        """Lets go of the running pass (and with it of the workers that are not persistent)."""
        self._batches = None

    def _first(self) -> Any:
        begin = self._clock()
        self._batches = iter(self._loader)
        started = self._clock()
        try:
            batch = next(self._batches)
        except StopIteration:
            raise _no_batches() from None
        self.workers_start_s = started - begin
        self.first_batch_s = self._clock() - started
        self.batches += 1
        return batch

    def _restart(self) -> Any:
        self._batches = None  # non-persistent workers of the old pass must end before new ones start
        self._batches = iter(self._loader)
        try:
            return next(self._batches)
        except StopIteration:
            raise _no_batches() from None


def chunk_batches(num_workers: int, accumulation: int, mixture: int = 1) -> int:
    """Batches per raw sample: whole worker rounds and whole accumulation groups, so that bursts average out.

    Args:
        num_workers: Loader workers.
        accumulation: Micro-batches per optimizer step.
        mixture: Batches that it takes until all kinds of batches occurred.
    """
    return math.lcm(max(1, num_workers), accumulation, mixture)


def _no_batches() -> TaskError:
    return TaskError(
        "The data yields no batch.",
        "Check that the dataset has samples, that drop_last does not drop them all, and that a stream can be "
        "iterated more than once (pass a factory if it cannot).",
    )
