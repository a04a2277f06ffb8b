"""A grid of settings measured twice, in opposite order.

The grid is every batch size x workers x threads first; then, at the fastest of these cells, every combination of memory
format, optimizer implementation and precision that the product would try here, until there are enough points.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from autotune.measurement import Measured, Outcome, Probe, ProbeKind
from autotune.settings import Settings
from autotune.space import Candidates
from benchmarks.probing import described

__all__ = ["POINT_DEADLINE_S", "Point", "cells", "fill", "flag_combinations"]

POINT_DEADLINE_S = 15.0
CUT_SHARE = 0.33  # of the best so far: after its first window, such a point is given up
_PARTS_OF = 3  # settings whose step and loader are also measured alone
_FLAGS = ("precision", "channels_last", "optimizer_implementation", "pin_memory", "cudnn_benchmark")

Run = Callable[[Probe], Outcome]


@dataclass(slots=True)
class Point:
    """One setting and what became of it, pass by pass."""

    settings: Settings
    outcomes: list[Outcome] = field(default_factory=list)
    kind: ProbeKind = "joint"

    @property
    def measured(self) -> list[Measured]:
        return [one for one in self.outcomes if isinstance(one, Measured)]

    @property
    def samples_per_s(self) -> float:
        """Mean over the passes; 0 where it did not run, or was cut."""
        good = [one.samples_per_s for one in self.measured if not one.cut]
        return statistics.fmean(good) if good and len(good) == len(self.outcomes) else 0.0

    @property
    def given_up(self) -> bool:
        """Failed, or far too slow: not measured again."""
        return any(not isinstance(one, Measured) or one.cut for one in self.outcomes)


def cells(candidates: Candidates, cores: int) -> list[Settings]:
    """Batch sizes x workers x threads, the baseline first."""
    baseline = candidates.baseline
    workers = sorted({0, 1, cores // 2, cores, cores + 1})
    threads = {baseline.num_threads, 1} | ({cores // 2} if cores > 3 else set())
    if "num_threads" in candidates.dropped:
        threads = {baseline.num_threads}
    found = [baseline]
    for batches in _batches(candidates):
        for num_workers, num_threads in itertools.product(workers, sorted(threads, key=lambda value: -(value or 0))):
            found.append(candidates.shared(baseline.replace(**batches), num_workers, num_threads))
    return [one for one in dict.fromkeys(found) if candidates.refusal(one) is None]


def flag_combinations(candidates: Candidates) -> list[dict[str, Any]]:
    """Every combination of the other knobs' values, but for all of them as they are; compilation is left out."""
    values = {name: candidates.values[name] for name in _FLAGS if name in candidates.values}
    if "optimizer_implementation" in values:
        values["optimizer_implementation"] = values["optimizer_implementation"][:1]
    choices = [({}, *({name: value} for value in found)) for name, found in values.items()]
    merged = [{name: v for part in parts for name, v in part.items()} for parts in itertools.product(*choices)]
    return [one for one in merged if one]


def fill(
    run: Run, candidates: Candidates, *, cores: int, points: int, window_s: float, say: Callable[[str], object]
) -> list[Point]:
    """Measures the grid in two passes; the second one runs in the opposite order and leaves out what was given up.

    Last come step and loader alone, of the baseline and the fastest settings.

    Args:
        run: Answers joint probes.
        candidates: What may be tried.
        cores: Of the machine.
        points: How many settings, at most.
        window_s: Length of a window.
        say: Told of each point.
    """
    found: list[Point] = []
    measure = _Measure(run, window_s, say, partial(described, baseline=candidates.baseline))
    for settings in cells(candidates, cores)[:points]:
        found.append(measure(Point(settings), number=1))
    for settings in itertools.islice(_at_the_best(found, candidates), points - len(found)):
        found.append(measure(Point(settings), number=1))
    for point in reversed(found):
        if not point.given_up:
            measure(point, number=2)
    fastest = sorted(found, key=lambda point: -point.samples_per_s)[:_PARTS_OF]
    for settings in dict.fromkeys([candidates.baseline, *(point.settings for point in fastest)]):
        found += [measure(Point(settings, kind=kind), number=2) for kind in ("compute", "loader")]
    return found


class _Measure:
    """Measures points one after the other, against the best so far."""

    def __init__(
        self, run: Run, window_s: float, say: Callable[[str], object], name: Callable[[Settings], str]
    ) -> None:
        self._run, self._window_s, self._say, self._name = run, window_s, say, name
        self._best = 0.0

    def __call__(self, point: Point, *, number: int) -> Point:
        probe = Probe(
            kind=point.kind,
            settings=point.settings,
            window_s=self._window_s,
            deadline_s=POINT_DEADLINE_S,
            # In the second pass it is known to be worth its window.
            cut_below_samples_per_s=CUT_SHARE * self._best or None if number == 1 else None,
            seed=number,
        )
        outcome = self._run(probe)
        point.outcomes.append(outcome)
        rate = outcome.samples_per_s if isinstance(outcome, Measured) else 0.0
        if number == 1:
            self._best = max(self._best, rate)
        how = "cut" if isinstance(outcome, Measured) and outcome.cut else outcome.fate
        name = self._name(point.settings)
        self._say(f"pass {number}, {point.kind}: {rate:.0f} samples/s, {how}, {outcome.cost_s:.1f} s: {name}")
        return point


def _batches(candidates: Candidates) -> list[dict[str, Any]]:
    baseline = candidates.baseline
    batch, steps = baseline.batch_size, baseline.gradient_accumulation_steps
    if batch is None:
        return [{}]
    if candidates.locked:
        shares = [one for one in (1, 2, 4) if batch % one == 0]
        return [{"batch_size": batch // one, "gradient_accumulation_steps": steps * one} for one in shares]
    sizes = {batch * 2**doublings for doublings in range(20)} | {candidates.max_effective_batch_size}
    return [{"batch_size": size} for size in sorted(sizes) if size * steps <= candidates.max_effective_batch_size]


def _at_the_best(found: Sequence[Point], candidates: Candidates) -> Iterator[Settings]:
    """All flags at the fastest cell, then at the next; what failed there is left out."""
    combinations = flag_combinations(candidates)
    for point in sorted(found, key=lambda point: -point.samples_per_s):
        for flags in combinations:
            settings = point.settings.replace(**flags)
            if point.samples_per_s and candidates.refusal(settings) is None:
                yield settings
