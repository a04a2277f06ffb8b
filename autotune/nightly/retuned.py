"""What became of a re-tune: the line of metrics, and the line of the change log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.config import Speedup
from autotune.profiles import Key
from autotune.task.parts import PartDifference, in_words

__all__ = ["Outcome", "Retuned"]

Outcome = Literal["unchanged", "kept", "remeasured", "rewritten", "new", "nothing proven"]
"""unchanged: no study was run; kept: a study found nothing that beats the stored settings by enough; remeasured: the
stored settings stay, with figures measured now, since others had used the machine before; rewritten: a study found
better ones; new: there was no config for this machine; nothing proven: nor is there one now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retuned:
    """What became of one re-tune: the line of metrics."""

    task: str
    outcome: Outcome
    reason: str
    when: str
    seconds: float
    key: Key
    verdict: str | None = None
    """Of the check before; None: there was nothing to check."""
    old_samples_per_s: float | None = None
    new_samples_per_s: float | None = None
    gain: Speedup | None = None
    """Of the new settings over the stored ones, raced."""
    moved: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Settings that changed: name -> old and new value; where nothing was stored, old is the baseline."""
    task_differences: tuple[PartDifference, ...] = ()
    """Where nothing is stored for this task: in what the task of that name that is stored differs from it."""

    @property
    def changed(self) -> bool:
        """Something was written."""
        return self.outcome in ("remeasured", "rewritten", "new")

    def to_json(self) -> dict[str, Any]:
        """One line's worth of JSON values."""
        fields = {one.name: getattr(self, one.name) for one in dataclasses.fields(self) if one.name != "key"}
        return {
            **fields,
            "gain": None if self.gain is None else self.gain.to_json(),
            "moved": {name: list(pair) for name, pair in self.moved.items()},
            "task_differences": [one.to_json() for one in self.task_differences],
            "fingerprint": self.key.task,
            "hardware": self.key.hardware,
        }

    def line(self) -> str:
        """The line of the change log: old -> new rate, and which settings moved."""
        rates = f"{_rate(self.old_samples_per_s)} -> {_rate(self.new_samples_per_s)} samples/s"
        gain = f" ({self.gain.median:.2f}x, at least {self.gain.low:.2f}x)" if self.gain else ""
        moved = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in self.moved.items()) or "no setting"
        other = (
            f"; what is stored is of another task ({in_words(self.task_differences)})" if self.task_differences else ""
        )
        return (
            f"{self.when} {self.task} [{self.key.hardware[7:19]}] {self.outcome}: {rates}{gain}; moved: {moved}{other}"
        )


def _rate(samples_per_s: float | None) -> str:
    return "?" if samples_per_s is None else f"{samples_per_s:,.0f}"
