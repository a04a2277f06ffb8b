"""Tables of what was really measured, and a machine that answers probes out of one.

A table is one JSON file: ``{"schema_version", "workload", "machine", "baseline", "facts", "rows"}``. ``machine`` is
``Hardware.to_json()``, ``baseline`` a setting's ``Settings.to_json()`` (null: the first row's), ``facts`` the task's
``Facts.to_json()`` (null: a plain map-style task is assumed). Each row is one measured setting, see ``RecordedRow``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from autotune.hardware import Hardware
from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe, ProbeKind, Rejected, TimedOut
from autotune.settings import DOMAINS, Settings
from autotune.space import BatchRules
from autotune.task import Facts
from benchmarks.simulated.clock import Clock, Overdue
from benchmarks.simulated.optimum import Optimum
from benchmarks.simulated.world import World, candidates_of, facts_of

__all__ = ["RecordedBench", "RecordedRow", "RecordedTable", "load_table", "recorded_world", "save_table"]

_SCHEMA_VERSION = 1
_CUT_AFTER_S = 0.5
_PROCESS_START_S = 4.0
_NUMERICS_S = 1.0
_UNKNOWN_WAIT_SHARE = 0.5
_SWITCHED = 4.0  # a switch that differs is as far as a batch 16 times as large


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRow:
    """One setting as it was measured."""

    settings: Settings
    samples_per_s: tuple[float, ...]
    """Raw rates, one per window, of all passes; empty for a failure."""
    fate: str = Measured.fate
    """As an outcome's ``fate``: measured, out of memory, rejected, crashed, timed out."""
    peak_ram_bytes: int | None = None
    peak_accelerator_bytes: int | None = None
    cost_s: float = 0.0
    """Wall time of the whole trial, the start of a process left out."""
    start_s: float = 0.0
    """Building model and loader, until the workers run."""
    first_batch_s: float = 0.0
    """From there to the first batch."""
    warmup_s: float = 0.0
    """From there to the window: compilation, and the stock of the workers."""
    kind: ProbeKind = "joint"
    """joint, or a look at the step (compute) or the loader alone."""
    data_wait_share: float | None = None
    """Share of the window in which the step waited for data; None: not recorded, taken for a half, so that nothing is
    ruled out."""

    @property
    def rate(self) -> float:
        """Median of the raw rates; 0 for a failure."""
        return statistics.median(self.samples_per_s) if self.samples_per_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return {**fields, "settings": self.settings.to_json(), "samples_per_s": list(self.samples_per_s)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedRow:
        """The row ``to_json`` wrote."""
        rates = tuple(map(float, data["samples_per_s"]))
        return cls(**{**data, "settings": Settings.from_json(data["settings"]), "samples_per_s": rates})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTable:
    """All that was measured of one workload on one machine."""

    workload: str
    machine: Hardware
    rows: tuple[RecordedRow, ...]
    baseline: Settings | None = None
    """None: the first row's."""
    facts: Facts | None = None
    notes: tuple[str, ...] = field(default=())
    """Date, versions, who else used the machine."""

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "schema_version": _SCHEMA_VERSION,
            "workload": self.workload,
            "machine": self.machine.to_json(),
            "baseline": None if self.baseline is None else self.baseline.to_json(),
            "facts": None if self.facts is None else self.facts.to_json(),
            "notes": list(self.notes),
            "rows": [row.to_json() for row in self.rows],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecordedTable:
        """The table ``to_json`` wrote.

        Raises:
            ValueError: It is of another schema, or holds nothing that was measured.
        """
        if data.get("schema_version", _SCHEMA_VERSION) != _SCHEMA_VERSION:
            raise ValueError(f"schema_version {data['schema_version']} is not {_SCHEMA_VERSION}")
        rows = tuple(RecordedRow.from_json(row) for row in data["rows"])
        if not any(row.rate for row in rows):
            raise ValueError("no row was measured")
        baseline, facts = data.get("baseline"), data.get("facts")
        return cls(
            workload=data["workload"],
            machine=Hardware.from_json(data["machine"]),
            rows=rows,
            baseline=None if baseline is None else Settings.from_json(baseline),
            facts=None if facts is None else Facts.from_json(facts),
            notes=tuple(data.get("notes", ())),
        )


def load_table(path: Path) -> RecordedTable:
    """The table in a file."""
    return RecordedTable.from_json(json.loads(path.read_text()))


def save_table(table: RecordedTable, path: Path) -> None:
    """Writes a table; a file that is there is replaced at once or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(table.to_json(), indent=1, allow_nan=False) + "\n")
    os.replace(partial, path)


def recorded_world(table: RecordedTable) -> World:
    """A world in which what was not recorded is as fast as the nearest setting that was."""
    joint = [row for row in table.rows if row.kind == "joint"]
    given = table.baseline or joint[0].settings
    facts = table.facts or facts_of(given, samples=None, sample_bytes=1, has_conv_4d=True, name=table.workload)
    best = max(joint, key=lambda row: row.rate)
    most = max(row.settings.effective_batch_size or 1 for row in joint)
    rules = BatchRules(max_effective_batch_size=max(most, given.effective_batch_size or 1))
    return World(
        name=table.workload,
        kind=f"{table.machine.device} {table.workload}",
        has_gpu=table.machine.accelerator is not None,
        hardware=table.machine,
        candidates=candidates_of(facts, table.machine, rules, given),
        most_batch=most,
        optimum=Optimum(settings=best.settings, samples_per_s=best.rate),
        bench=lambda seed: RecordedBench(table, seed),
        true_samples_per_s=lambda settings: nearest_row(joint, settings).rate,
        fits=lambda settings: nearest_row(joint, settings).fate == Measured.fate,
    )


def nearest_row(rows: Sequence[RecordedRow], settings: Settings) -> RecordedRow:
    """The row whose setting is the least apart: counts by doublings, anything else equal or not."""
    return min(rows, key=lambda row: _apart(row.settings, settings))


def _apart(one: Settings, other: Settings) -> float:
    total = 0.0
    for name, (own, its) in one.differences(other).items():
        if DOMAINS[name].choices or own is None or its is None:
            total += 0.5 if name in ("prefetch_factor", "persistent_workers", "num_threads") else _SWITCHED
        else:
            total += abs(math.log2((own + 1) / (its + 1)))
    return total


class RecordedBench:
    """Answers probes with what was recorded of the nearest setting.

    A window's rate is one of the raw rates. Step and loader alone are answered only where they were recorded (else
    rejected); comparisons of numerics always agree.

    Args:
        table: The table.
        seed: Picks the raw rates.
    """

    def __init__(self, table: RecordedTable, seed: int) -> None:
        self._table, self._random = table, np.random.default_rng(seed)
        self.clock = Clock()
        self.starts = self.probes = self.out_of_memory = 0
        self._alive = False
        self._warm: set[Settings] = set()

    def start(self) -> None:
        """Starts a process."""
        self.clock.spend(_PROCESS_START_S, "process start")
        self.starts += 1
        self._alive = True
        self._warm.clear()

    def run(self, probe: Probe) -> Outcome:
        """What became of ``probe``."""
        if not self._alive:
            self.start()
        self.probes += 1
        self.clock.racing = probe.kind == "lap"
        began = self.clock.now_s
        self.clock.deadline_s = began + probe.deadline_s
        try:
            outcome = self._answer(probe)
        except Overdue:
            self._alive = False
            outcome = TimedOut(kind=probe.kind, settings=probe.settings, deadline_s=probe.deadline_s)
        finally:
            self.clock.deadline_s, self.clock.racing = math.inf, False
        if isinstance(outcome, OutOfMemory):
            self.out_of_memory += 1
            self._alive = self._table.machine.accelerator is not None
        return dataclasses.replace(outcome, cost_s=self.clock.now_s - began)

    def _answer(self, probe: Probe) -> Outcome:
        if probe.kind == "numerics":
            self.clock.spend(_NUMERICS_S, "numerics")
            return Measured(kind="numerics", settings=probe.settings, chunks=(), first_loss=1.0, loss_error=0.0)
        wanted = "joint" if probe.kind == "lap" else probe.kind
        rows = [row for row in self._table.rows if row.kind == wanted]
        if not rows:
            reason = "was not recorded"
            return Rejected(kind=probe.kind, settings=probe.settings, phase="build", reason=reason)
        row = nearest_row(rows, probe.settings)
        return self._measured(probe, row) if row.fate == Measured.fate else self._failed(probe, row)

    def _failed(self, probe: Probe, row: RecordedRow) -> Outcome:
        self.clock.spend(row.cost_s, "failures")
        kind, settings = probe.kind, probe.settings
        if row.fate == OutOfMemory.fate:
            return OutOfMemory(kind=kind, settings=settings, where="watchdog", message="recorded")
        if row.fate == TimedOut.fate:
            self.clock.spend(probe.deadline_s, "failures")
        return Rejected(kind=kind, settings=settings, phase="step", reason=f"recorded as {row.fate}")

    def _measured(self, probe: Probe, row: RecordedRow) -> Measured:
        warm = probe.kind == "lap" and probe.settings in self._warm
        start_s, warmup_s = (0.0, 0.0) if warm else (row.start_s + row.first_batch_s, row.warmup_s)
        self.clock.spend(0.0 if warm else row.start_s, "building")
        self.clock.spend(0.0 if warm else row.first_batch_s, "first batches")
        self.clock.spend(warmup_s, "warm-up")
        self._warm = {*self._warm, probe.settings} if probe.kind == "lap" else set()
        rate = float(self._random.choice(row.samples_per_s))
        cut = probe.cut_below_samples_per_s is not None and rate < probe.cut_below_samples_per_s
        window_s = min(_CUT_AFTER_S, probe.window_s) if cut else probe.window_s
        self.clock.spend(window_s, "windows")
        rows = max(1, round(rate * window_s / 2))
        seconds = rows / rate
        wait_share = _UNKNOWN_WAIT_SHARE if row.data_wait_share is None else row.data_wait_share
        return Measured(
            kind=probe.kind,
            settings=probe.settings,
            chunks=(Chunk(rows, seconds, wait_share * seconds),) * 2,
            start_s=start_s,
            warmup_s=start_s + warmup_s,
            largest_batch_rows=probe.settings.batch_size or 0,
            cut=cut,
            peak_ram_bytes=row.peak_ram_bytes,
            peak_accelerator_bytes=row.peak_accelerator_bytes,
        )
