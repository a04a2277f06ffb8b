"""Settings that stay alive between race laps, each held still while another runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from autotune.hardware import Limits, tree_memory_bytes
from autotune.measurement import Measured, Probe
from autotune.settings import Settings
from autotune.trial.joint import run_joint
from autotune.trial.live import Live, LiveBuilder
from autotune.trial.pause import ProgressGuard, can_pause, pause, resume

__all__ = ["Residents"]

_PATIENCE_S = 10.0
_MOST = 3


class Residents:
    """Runs laps; keeps each setting's live objects for its next lap while memory allows.

    Args:
        builder: Builds what is not resident yet.
        limits: What the process tree may use.
        single: There is only one model: nothing can stay resident.
    """

    def __init__(self, builder: LiveBuilder, limits: Limits, *, single: bool) -> None:
        self._builder, self._limits = builder, limits
        self._live: dict[Settings, Live] = {}
        self._keep = not single and can_pause()

    def lap(self, probe: Probe, *, epoch_rows: int | None, clock: Callable[[], float]) -> Measured:
        """One joint window of ``probe.settings``; built and warmed up first unless it is resident."""
        live = self._take(probe)
        resume(live.stream.worker_pids)
        try:
            if live.started:
                return self._warm_lap(live, probe, epoch_rows, clock)
            return self._first_lap(live, probe, epoch_rows, clock)
        except BaseException:
            self._builder.discard(live)
            raise

    def clear(self) -> None:
        """Ends all resident settings."""
        while self._live:
            _, live = self._live.popitem()
            resume(live.stream.worker_pids)
            self._builder.give_back(live)

    def _first_lap(self, live: Live, probe: Probe, epoch_rows: int | None, clock: Callable[[], float]) -> Measured:
        """Starts with the others running: a lock one of them holds must not stop a start that may take long."""
        for other in self._live.values():
            resume(other.stream.worker_pids)
            # The queue fills meanwhile: where the loader is what limits, that stock must be used up before it is timed.
            other.warm = not other.starved
        measured = run_joint(live, probe, epoch_rows=epoch_rows, clock=clock)
        for other in self._live.values():
            pause(other.stream.worker_pids)
        self._put(live)
        return dataclasses.replace(measured, resident=self._keep and not self._tight())

    def _warm_lap(self, live: Live, probe: Probe, epoch_rows: int | None, clock: Callable[[], float]) -> Measured:
        others = self._other_pids()
        with ProgressGuard(lambda: live.stream.batches, lambda: resume(others), patience_s=_PATIENCE_S) as guard:
            measured = run_joint(live, probe, epoch_rows=epoch_rows, clock=clock)
        if guard.rescued and others:
            self._builder.give_back(live)
            return self._lap_alone(probe, epoch_rows, clock)
        self._put(live)
        return dataclasses.replace(measured, resident=True)

    def _lap_alone(self, probe: Probe, epoch_rows: int | None, clock: Callable[[], float]) -> Measured:
        """Held-still workers kept a lock: from here on each lap starts its own workers."""
        self._keep = False
        self.clear()
        measured = self.lap(probe, epoch_rows=epoch_rows, clock=clock)
        note = "The data locks itself across processes: race laps were run one setting at a time."
        return dataclasses.replace(measured, warnings=(*measured.warnings, note))

    def _take(self, probe: Probe) -> Live:
        live = self._live.pop(probe.settings, None)
        if live is not None:
            return live
        if len(self._live) >= _MOST or self._tight():
            self.clear()
        return self._builder.build(probe.settings, probe.seed)

    def _put(self, live: Live) -> None:
        if not self._keep:
            self._builder.give_back(live)
            return
        pause(live.stream.worker_pids)
        self._live[live.settings] = live

    def _other_pids(self) -> list[int]:
        return [pid for live in self._live.values() for pid in live.stream.worker_pids]

    def _tight(self) -> bool:
        return bool(self._live) and 2 * tree_memory_bytes(os.getpid()) > self._limits.ram_bytes
