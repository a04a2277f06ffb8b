"""One setting in a race: its laps so far, and what another lap costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autotune.measurement import Measured, Outcome
from autotune.settings import Settings

__all__ = ["LONGEST_LAP_S", "SHORTEST_LAP_S", "TARGET_LAP_S", "Entry", "rounds_and_lap_s"]

# Beyond a second, more laps say more than longer ones: most of the noise is that of whole laps.
TARGET_LAP_S = 1.0
# Shorter laps are a step or two, dominated by the edges of the window.
SHORTEST_LAP_S = 0.4
# Beyond this, time is better not spent at all.
LONGEST_LAP_S = 2.0
# Waking the processes of a setting that was held still, and what goes back and forth.
_WAKING_S = 0.05
_HALVINGS = 12  # of the range of lap lengths: to a thousandth of a second


@dataclass(slots=True)
class Entry:
    """One setting in the race."""

    settings: Settings
    overhead_s: float = 0.0
    """Expected of a further lap beyond its window."""
    once_s: float = 0.0
    """Expected of the next lap on top: the batches that lay ready while others started."""
    chunk_s: float = 0.0
    """Laps are whole multiples of this: a step, or a turn of the workers where these are waited for."""
    resident: bool = False
    """Its objects stay for the next lap."""
    rates: list[float] = field(default_factory=list)
    disturbed: list[bool] = field(default_factory=list)
    failed: Outcome | None = None
    left_out: bool = False
    others_cores: float | None = None

    @property
    def racing(self) -> bool:
        """Neither failed nor left out."""
        return self.failed is None and not self.left_out

    def warmed_up(self, measured: Measured, elapsed_s: float, window_s: float) -> None:
        """Takes from an untimed lap what the next ones will cost.

        Args:
            measured: What the lap said.
            elapsed_s: What it took in all.
            window_s: What it was asked for.
        """
        self.resident = measured.resident
        if not measured.resident or not measured.chunks:
            self.overhead_s = max(0.0, elapsed_s - window_s)
            return
        self.overhead_s = measured.step_s + _WAKING_S
        self.chunk_s = measured.turn_s
        # Who waits for workers uses up what lay ready before it is timed again.
        self.once_s = max(0.0, measured.warmup_s - measured.start_s) if measured.starved else 0.0

    def lap_cost_s(self, lap_s: float) -> float:
        """What a lap of at least ``lap_s`` takes."""
        chunks = max(1, math.ceil(lap_s / self.chunk_s - 1e-9)) if self.chunk_s else 0
        return self.overhead_s + max(lap_s, chunks * self.chunk_s)


def rounds_and_lap_s(left_s: float, racing: list[Entry], min_rounds: int, max_rounds: int) -> tuple[int, float]:
    """The most rounds whose laps reach the target length; else the fewest, with laps as long as time allows.

    An even number of rounds is preferred: a steady drift then cancels exactly.

    Args:
        left_s: For all of them.
        racing: Who runs.
        min_rounds: Fewest.
        max_rounds: Most.

    Returns:
        Rounds, and the length of a lap; 0 where not even the shortest would do.
    """
    left_s -= sum(entry.once_s for entry in racing[:-1])
    for rounds in range(max_rounds, min_rounds - 1, -1):
        lap_s = _longest_lap_s(left_s / rounds, racing)
        if lap_s >= TARGET_LAP_S and (rounds % 2 == 0 or rounds == min_rounds):
            return rounds, lap_s
    return min_rounds, _longest_lap_s(left_s / min_rounds, racing)


def _longest_lap_s(round_s: float, racing: list[Entry]) -> float:
    low, high = 0.0, LONGEST_LAP_S
    if sum(entry.lap_cost_s(high) for entry in racing) <= round_s:
        return high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = sum(entry.lap_cost_s(middle) for entry in racing) <= round_s
        low, high = (middle, high) if fits else (low, middle)
    return low
