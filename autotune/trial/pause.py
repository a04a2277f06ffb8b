"""Holds the loader workers of a resident setting still while another one has its lap.

Idle workers go on filling their queues after a lap: they would take CPU from the other setting's lap and hand
their own next lap batches that cost nothing. Stopped in mid-air they do neither, and the pipeline resumes in the
very state it was measured in. A stopped worker may hold a lock that the other setting's workers wait for (a
locked file, a database): then the lap makes no progress, everything is resumed, and pausing is given up.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

__all__ = ["ProgressGuard", "can_pause", "pause", "resume"]

_STOP = getattr(signal, "SIGSTOP", None)
_CONTINUE = getattr(signal, "SIGCONT", None)


def can_pause() -> bool:
    """Whether this platform can stop and continue processes by signal."""
    return _STOP is not None and _CONTINUE is not None


def pause(pids: Sequence[int]) -> None:
    """Stops the processes; those already gone are left out."""
    _signal(pids, _STOP)


def resume(pids: Sequence[int]) -> None:
    """Lets the processes go on; those already gone are left out."""
    _signal(pids, _CONTINUE)


class ProgressGuard:
    """While entered, calls ``rescue`` once if ``progress`` does not change for ``patience_s``.

    Args:
        progress: Any counter that grows while work is done.
        rescue: Called from a thread of its own.
        patience_s: Seconds without progress.
    """

    def __init__(self, progress: Callable[[], int], rescue: Callable[[], None], *, patience_s: float) -> None:
        self._progress, self._rescue, self._patience_s = progress, rescue, patience_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.rescued = False

    def __enter__(self) -> ProgressGuard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        last = self._progress()
        while not self._done.wait(self._patience_s):
            now = self._progress()
            if now == last:
                self.rescued = True
                self._rescue()
                return
            last = now


def _signal(pids: Sequence[int], number: signal.Signals | None) -> None:
    if number is None:
        return
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it ended by itself; the loader reports that at its next batch
            continue
