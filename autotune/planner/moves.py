"""What a stage of the plan may ask for, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from autotune.hardware import Hardware
from autotune.measurement import DataCosts, Measured, Outcome, ProbeKind
from autotune.planner.ledger import Ledger
from autotune.planner.pace import Pace
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["Move", "Moves", "Search", "Stage", "batch_times", "gained", "rate_of"]


@dataclass(frozen=True, slots=True)
class Move:
    """One probe that a stage wants to see answered."""

    settings: Settings
    kind: ProbeKind = "joint"
    cap_s: float | None = None
    """Longest it may take; None: the pace's cap."""
    cut_share: float | None = None
    """Cut below this share of the best; None: the pace's."""
    again: bool = False
    """Also where it was measured before."""


class Search(Protocol):
    """What a stage may look at, and the two things it may write."""

    candidates: Candidates
    hardware: Hardware
    pace: Pace
    ledger: Ledger
    guess: Settings
    """The best settings for the step alone so far (accelerators: found by compute probes)."""
    earlier: Settings | None
    """What an earlier run found to be fastest; None: there was none."""
    skipped: dict[str, str]
    """Knobs that a stage left alone, each with its reason."""

    @property
    def data(self) -> DataCosts | None:
        """What the samples cost; None where all are alike."""
        ...

    @property
    def best(self) -> Measured:
        """The fastest setting so far."""
        ...

    def left_s(self) -> float:
        """Seconds left for the search."""
        ...

    def idle_moves(self) -> int:
        """Local moves without a gain after which nothing is left to find."""
        ...

    def compile_cap_s(self) -> float:
        """Longest a trial may compile."""
        ...

    def step_cap_s(self) -> float:
        """Longest step that a grown batch may lead to."""
        ...


Moves = Generator[Move, Outcome | None, None]
"""Yields moves, is sent their outcomes: None where a move may not be made or was made before and failed."""

Stage = Callable[[Search], Moves]


def rate_of(outcome: Outcome | None) -> float:
    """Samples per second; 0 for anything that was not measured to its end."""
    return outcome.samples_per_s if isinstance(outcome, Measured) and not outcome.cut else 0.0


def gained(outcome: Outcome | None, over: float, least: float) -> bool:
    """Whether ``outcome`` beats the rate ``over`` by more than the share ``least``."""
    return rate_of(outcome) > over * (1 + least)


def batch_times(search: Search, settings: Settings, factor: float) -> Settings | None:
    """``settings`` with the micro-batch grown (or shrunk) by ``factor``, or as far as allowed; None where it cannot.

    Where the effective batch is locked, micro-batches grow and shrink by merging and splitting accumulation steps.
    """
    batch = settings.batch_size
    if batch is None or "batch_size" in search.candidates.dropped:
        return None
    if search.candidates.locked:
        return _regrouped(search, settings, factor)
    most = min(
        search.candidates.max_batch_size,
        search.candidates.max_effective_batch_size // settings.gradient_accumulation_steps,
    )
    size = max(1, min(search.candidates.space.nearest("batch_size", round(batch * factor)), most))
    return None if size == batch or (size > batch) != (factor > 1) else settings.replace(batch_size=size)


def _regrouped(search: Search, settings: Settings, factor: float) -> Settings | None:
    batch, accumulation = settings.batch_size or 1, settings.gradient_accumulation_steps
    effective = batch * accumulation
    most = min(search.candidates.max_batch_size, effective)
    allows = search.candidates.space.allows
    divisors = [size for size in range(1, most + 1) if effective % size == 0 and allows("batch_size", size)] or [batch]
    size = min(divisors, key=lambda divisor: abs(divisor - batch * factor))
    if size == batch or (size > batch) != (factor > 1):
        return None
    return settings.replace(batch_size=size, gradient_accumulation_steps=effective // size)
