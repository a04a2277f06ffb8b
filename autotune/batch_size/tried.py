"""What was run and what came of it: plain records."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from autotune.measurement import DataCosts

__all__ = ["LargestBatch", "SizeTried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTried:
    """One size that was run, and what came of it."""

    size: int
    """Rows really run; as asked where the run failed."""
    fits: bool
    fate: str
    """Of the run, such as "measured" or "out of memory"."""
    steps: int
    """Optimizer steps asked for."""
    message: str = ""
    """Why it does not fit; empty where it does."""
    traceback: str | None = None
    """Of an exception that is not about memory."""
    memory: bool = False
    """It does not fit for lack of memory."""
    peak_bytes: int | None = None
    limit_bytes: int | None = None
    """What ``peak_bytes`` could have been."""
    s_per_row: float | None = None
    """Seconds a row of the fastest step took."""
    cost_s: float = 0.0

    def failed(self, message: str) -> SizeTried:
        """The same run, not fit for training for a reason that memory is behind."""
        return dataclasses.replace(self, fits=False, memory=True, message=message)

    def leaves(self, margin: float) -> bool | None:
        """Whether the peak leaves this share of the memory free; None where it cannot be read."""
        if self.peak_bytes is None or not self.limit_bytes:
            return None
        return self.peak_bytes <= (1 - margin) * self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The largest batch size that trains here; it was itself run."""

    batch_size: int
    probes: int
    """Runs in all, the last verification included."""
    out_of_memory_probes: int
    reason: str
    """What bounds it."""
    evidence: tuple[SizeTried, ...]
    """Every run, in order."""
    data: DataCosts | None = None
    """What the samples cost: sizes were run on the costliest of those that were seen; None where all are alike."""
    warnings: tuple[str, ...] = ()
    """What went less than well, one sentence each."""

    def __str__(self) -> str:
        runs = f"{self.probes} runs, {self.out_of_memory_probes} out of memory"
        lines = [f"Largest batch: {self.batch_size:,} ({runs}). {self.reason}", *self.warnings]
        for one in self.evidence:
            peak = "" if one.peak_bytes is None else f", peak {one.peak_bytes:,} of {one.limit_bytes or 0:,} bytes"
            lines.append(f"  batch {one.size:>8,}, {one.steps} steps: {one.fate}{peak}")
        return "\n".join(lines)
