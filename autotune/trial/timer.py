"""Reads the clock so that queued device work is counted where it belongs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

__all__ = ["WindowTimer", "synchronize"]

_EVENT_DEVICES = ("cuda", "xpu")
_LONG_SPAN_S = 0.1  # beside it, the time in which the host queues the next step is nothing


def synchronize(device: torch.device) -> None:
    """Waits until all work queued on ``device`` is done (nothing to do on a CPU)."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class WindowTimer:
    """Splits a window into spans without holding up the device.

    On CUDA and XPU the spans come from device events, and the host runs at most one short span ahead, so that it knows
    when the window is over; on other accelerators, where a host clock between the two
    synchronisations would only see work being queued, the whole window is one span.

    Args:
        device: Where the steps run.
        clock: Seconds, monotonic.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._device = device
        self._clock = clock
        self._marks: list[float] = []
        self._events: list[torch.Event] = []
        self._begin = 0.0

    def start(self) -> None:
        """Begins the window after everything queued before it."""
        synchronize(self._device)
        self._begin = self._clock()
        self._record()

    def mark(self) -> float:
        """Ends a span; returns the host's seconds since ``start``."""
        self._record()
        self._keep_up()
        self._marks.append(self._clock())
        return self._marks[-1] - self._begin

    def spans_s(self) -> list[float]:
        """Seconds of each span; one span for all where the device has no events."""
        synchronize(self._device)
        end = self._clock()
        if self._device.type == "cpu":
            edges = [self._begin, *self._marks]
            return [later - earlier for earlier, later in itertools.pairwise(edges)]
        if not self._events:
            return [end - self._begin]
        pairs = itertools.pairwise(self._events)
        return [earlier.elapsed_time(later) / 1e3 for earlier, later in pairs]

    def _keep_up(self) -> None:
        """Waits for the span before, which leaves the device work to do; for this one where that costs nothing."""
        if len(self._events) < 2:
            return
        last_s = self._marks[-1] - (self._marks[-2] if len(self._marks) > 1 else self._begin) if self._marks else None
        long = last_s is None or last_s >= _LONG_SPAN_S
        self._events[-1 if long else -2].synchronize()

    def _record(self) -> None:
        if self._device.type in _EVENT_DEVICES:
            event = torch.Event(self._device, enable_timing=True)
            event.record()
            self._events.append(event)
