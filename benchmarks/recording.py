"""A measured grid as a file, ``recorded/WORKLOAD.json``: what a replay needs, and what was seen in each pass."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotune.hardware import Hardware
from autotune.measurement import Measured, Outcome
from autotune.settings import Settings
from autotune.space import Candidates
from benchmarks.grid import POINT_DEADLINE_S, Point
from benchmarks.probing import OTHERS_CORES

__all__ = ["SCHEMA_VERSION", "Table", "record"]

SCHEMA_VERSION = 1
"""Of the tables; ``simulated/recorded.py`` reads them too."""

_MOST_CHUNKS = 12  # raw samples kept of a window


@dataclass(slots=True, kw_only=True)
class Table:
    """What was recorded of one workload."""

    workload: str
    baseline: Settings
    locked: bool
    rates: dict[Settings, list[float]]
    """Rates over whole epochs, one per pass; empty where it failed or was cut."""
    disturbed: int
    """Points in whose windows other processes used the CPU."""
    seconds: float
    """Wall time of measuring it, new processes included."""

    @property
    def best(self) -> list[Settings]:
        """Fastest first."""
        good = [settings for settings, rates in self.rates.items() if rates]
        return sorted(good, key=lambda settings: -statistics.fmean(self.rates[settings]))

    @property
    def scatter(self) -> float:
        """Median difference between the passes, as a share."""
        logs = [abs(math.log(rates[1] / rates[0])) for rates in self.rates.values() if len(rates) == 2]
        return math.expm1(statistics.median(logs)) if logs else 0.0

    @classmethod
    def read(cls, path: Path) -> Table:
        """The table that ``record`` wrote."""
        document = json.loads(path.read_text())
        joint = [(row, passes) for row, passes in _pairs(document) if row["kind"] == "joint"]
        others = [max((one["others_cores"] or 0.0 for one in passes), default=0.0) for _, passes in joint]
        return cls(
            workload=document["workload"],
            baseline=Settings.from_json(document["baseline"]),
            locked=document["locked"],
            rates={Settings.from_json(row["settings"]): _good_rates(row, passes) for row, passes in joint},
            disturbed=sum(cores > OTHERS_CORES for cores in others),
            seconds=document["seconds"],
        )


def record(
    path: Path, points: Sequence[Point], candidates: Candidates, *, workload: str, machine: Hardware, **times: float
) -> Table:
    """Writes the table, the whole file or none, and reads it again.

    ``rows`` hold what a replay needs; ``passes``, in the same order, what was seen in each pass.

    Args:
        path: The file.
        points: As ``fill`` returned them.
        candidates: The rules they were measured under.
        workload: Its name.
        machine: Where it was measured.
        **times: ``seconds`` of measuring all of it, ``process_start_s``.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "workload": workload,
        "locked": candidates.locked,
        **times,
        "point_deadline_s": POINT_DEADLINE_S,
        "machine": machine.to_json(),
        "baseline": candidates.baseline.to_json(),
        "facts": candidates.facts.to_json(),
        "notes": [f"measured {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"],
        "rows": [_row(point) for point in points],
        "passes": [[_pass(one) for one in point.outcomes] for point in points],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".partial")
    lines = ",\n".join(f'"{name}": {_lines(value)}' for name, value in document.items())
    part.write_text(f"{{\n{lines}\n}}\n")
    part.replace(path)
    return Table.read(path)


def _row(point: Point) -> dict[str, Any]:
    """What a replay reads: means over the passes; the parts of the cost add up to it."""
    measured = point.measured
    ram = [one.peak_ram_bytes for one in measured if one.peak_ram_bytes is not None]
    device = [one.peak_accelerator_bytes for one in measured if one.peak_accelerator_bytes is not None]
    waits = [one.data_wait_share for one in measured if one.data_wait_share is not None]
    return {
        "settings": point.settings.to_json(),
        "kind": point.kind,
        "fate": point.outcomes[-1].fate,
        "samples_per_s": [one.samples_per_s for one in measured] if len(measured) == len(point.outcomes) else [],
        "peak_ram_bytes": max(ram, default=None),
        "peak_accelerator_bytes": max(device, default=None),
        "cost_s": statistics.fmean(one.cost_s for one in point.outcomes),
        "start_s": _mean(max(0.0, one.cost_s - one.warmup_s - _window_s(one)) for one in measured),
        "first_batch_s": _mean(one.start_s for one in measured),
        "warmup_s": _mean(one.warmup_s - one.start_s for one in measured),
        "data_wait_share": _mean(waits) if waits else None,
    }


def _pass(outcome: Outcome) -> dict[str, Any]:
    if not isinstance(outcome, Measured):
        return {"fate": outcome.fate, "cut": False, "others_cores": None, "cost_s": outcome.cost_s, "chunks": []}
    return {
        "fate": outcome.fate,
        "cut": outcome.cut,
        "others_cores": outcome.others_cores,
        "redone": outcome.redone,
        "cost_s": outcome.cost_s,
        "chunks": [[rows, round(seconds, 5)] for rows, seconds in _grouped(outcome)],
    }


def _grouped(measured: Measured) -> Iterator[tuple[int, float]]:
    """Rows and seconds of the window's chunks, neighbours added up to at most a dozen."""
    size = -(-len(measured.chunks) // _MOST_CHUNKS)
    for start in range(0, len(measured.chunks), max(1, size)):
        part = measured.chunks[start : start + size]
        yield sum(chunk.rows for chunk in part), math.fsum(chunk.seconds for chunk in part)


def _good_rates(row: dict[str, Any], passes: list[dict[str, Any]]) -> list[float]:
    good = all(one["fate"] == Measured.fate and not one["cut"] for one in passes)
    return list(row["samples_per_s"]) if good else []


def _pairs(document: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    return zip(document["rows"], document["passes"], strict=True)


def _lines(value: Any) -> str:
    """JSON; of a list, one line an entry."""
    if not isinstance(value, list):
        return json.dumps(value, allow_nan=False)
    return "[\n " + ",\n ".join(json.dumps(one, allow_nan=False) for one in value) + "\n]"


def _window_s(measured: Measured) -> float:
    return math.fsum(chunk.seconds for chunk in measured.chunks)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean([*values] or [0.0])
