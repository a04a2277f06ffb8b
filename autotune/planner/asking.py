"""Questions to the machine, and what a new process costs where one did not survive its question."""

from __future__ import annotations

from collections.abc import Callable

from autotune.measurement import Crashed, Outcome, OutOfMemory, Probe, TimedOut

__all__ = ["Asking"]

_NOTHING_S = 0.2  # below this, a process was there already


class Asking:
    """Answers probes as ``run`` does.

    Args:
        run: Answers a probe; its ``cost_s`` leaves out the start of a new process.
        clock: Seconds, monotonic.
        start_s: What the first start took: the best guess at the next one's.
        survives_out_of_memory: Running out of memory does not end the process (accelerators).
    """

    def __init__(
        self,
        run: Callable[[Probe], Outcome],
        clock: Callable[[], float],
        *,
        start_s: float,
        survives_out_of_memory: bool,
    ) -> None:
        self._run, self._clock, self._start_s = run, clock, start_s
        self._deadly = (Crashed, TimedOut) if survives_out_of_memory else (Crashed, TimedOut, OutOfMemory)
        self._dead = False

    def __call__(self, probe: Probe) -> Outcome:
        """What became of ``probe``."""
        began = self._clock()
        outcome = self._run(probe)
        started_s = self._clock() - began - outcome.cost_s
        if self._dead and started_s > _NOTHING_S:
            self._start_s = started_s
        self._dead = isinstance(outcome, self._deadly)
        return outcome

    @property
    def due_s(self) -> float:
        """Seconds that the next question costs before it is even asked."""
        return self._start_s if self._dead else 0.0
