"""Ctrl-C noticed, also where the code below ends its work in good order instead of raising."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.measurement import Outcome, Probe

__all__ = ["heeding", "noticing_interrupt"]


def heeding(pressed: Callable[[], bool], run: Callable[[Probe], Outcome]) -> Callable[[Probe], Outcome]:
    """``run``, but for a press of Ctrl-C that nobody saw: python drops what is raised in destructors and callbacks.

    Args:
        pressed: See ``noticing_interrupt``.
        run: Answers a probe.
    """

    def answer(probe: Probe) -> Outcome:
        if pressed():
            raise KeyboardInterrupt
        return run(probe)

    return answer


@contextmanager
def noticing_interrupt() -> Iterator[Callable[[], bool]]:
    """Yields a question: has Ctrl-C been pressed since? It still raises KeyboardInterrupt as before.

    Signal handlers belong to the main thread; in any other the answer stays no.
    """
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        if callable(before):
            before(number, frame)

    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: pressed
        return
    signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
