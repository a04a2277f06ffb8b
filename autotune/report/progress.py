"""Progress of a search: the event a search sends, and its display as one live line or as plain lines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["LiveProgress", "Progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a search is."""

    elapsed_s: float
    """Since the call began."""
    budget_s: float
    """Time allowed for the whole call."""
    phase: str
    """Such as "baseline", "search", "race"."""
    message: str
    """What is going on, in a few words."""
    best_samples_per_s: float | None = None
    """Best rate measured so far; None before the first."""

    def __str__(self) -> str:
        return f"{self.elapsed_s:5.1f} s  {self.phase}: {self.message}"


class LiveProgress:
    """Shows progress events: one live line with the time left on a terminal, plain lines elsewhere.

    Use as a context manager around the search and pass it as ``progress``. The live line is gone afterwards.

    Args:
        stream: Where to write; None: ``sys.stderr`` as it is then.
        quiet: Shows nothing.
        clock: Seconds; lets the time left run down between events.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._quiet, self._clock = stream, quiet, clock
        self._live: Live | None = None
        self._plain: TextIO | None = None
        self._last: tuple[Progress, float] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> LiveProgress:
        if self._quiet:
            return self
        stream = self._stream or sys.stderr
        console = Console(file=stream)
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(
                console=console,
                get_renderable=self._line,
                refresh_per_second=4,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        else:
            self._plain = stream
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        live, self._live, self._plain = self._live, None, None
        if live is not None:
            live.stop()

    def __call__(self, event: Progress) -> None:
        """Shows one event; a plain line only where the phase or the message is new.

        Args:
            event: Where the search is.
        """
        with self._lock:
            before, self._last = self._last, (event, self._clock())
        if self._live is not None:
            self._live.refresh()
        elif self._plain is not None and (before is None or _news(before[0]) != _news(event)):
            print(_text(event, event.elapsed_s), file=self._plain, flush=True)

    def _line(self) -> Text:
        with self._lock:
            last = self._last
        if last is None:
            return Text("autotune: starting")
        event, seen_at = last
        return Text(_text(event, event.elapsed_s + self._clock() - seen_at), no_wrap=True, overflow="ellipsis")


def _text(event: Progress, elapsed_s: float) -> str:
    left_s = max(0.0, event.budget_s - elapsed_s)
    parts = [f"[{elapsed_s:4.0f} s, {left_s:.0f} s left] {event.phase}: {event.message}"]
    if event.best_samples_per_s is not None:
        parts.append(f"best {event.best_samples_per_s:,.1f} samples/s")
    return " | ".join(parts)


def _news(event: Progress) -> tuple[str, str]:
    return event.phase, event.message
