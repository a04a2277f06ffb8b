"""Ctrl-C noticed, also where the code below ends its work in good order instead of raising."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["noticing_interrupt"]


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
