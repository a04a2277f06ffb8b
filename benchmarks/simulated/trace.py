"""What one run of a strategy did, and what only the simulation can say about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.measurement import Measured, Outcome
from autotune.planner import Found
from autotune.race import RaceResult
from autotune.settings import Settings
from benchmarks.simulated.world import Bench, World

__all__ = ["Score", "Trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One run in figures; rates are true ones."""

    strategy: str
    world: str
    kind: str
    has_gpu: bool
    budget_s: float
    seed: int
    score: float
    """Rate of the pick over that of the optimum."""
    against_baseline: float
    """Rate of the pick over the baseline's."""
    believed: float
    """As ``score``, of what the search held for the best before the race."""
    curve: tuple[tuple[float, float], ...]
    """(seconds, score of what was held for the best from then on)."""
    spent_s: dict[str, float]
    wall_s: float
    probes: dict[str, int]
    out_of_memory: int
    fates: dict[str, int]
    process_starts: int
    pick: dict[str, Any]
    believed_settings: dict[str, Any]
    optimum: dict[str, Any]
    differs: dict[str, float]
    """Knobs in which what it believed in differs from the optimum, each with the gain of changing it alone."""
    why: str

    def seconds_to(self, share: float) -> float | None:
        """When what was held for the best first reached a share of the optimum; None: never."""
        return next((at_s for at_s, score in self.curve if score >= share), None)


@dataclass(kw_only=True)
class Trace:
    """One run of a strategy, while it runs and afterwards."""

    world: World
    strategy: str
    budget_s: float
    seed: int
    bench: Bench
    beliefs: list[tuple[float, Settings]] = field(default_factory=list)
    pick: Settings | None = None
    outcomes: Sequence[Outcome] = ()
    found: Found | None = None
    races: Sequence[RaceResult] = ()
    why: str = ""

    def believe(self, settings: Settings) -> None:
        """Notes what the strategy holds for the best now."""
        if not self.beliefs or self.beliefs[-1][1] != settings:
            self.beliefs.append((self.bench.clock.now_s, settings))

    def finish(
        self,
        pick: Settings | None,
        *,
        outcomes: Sequence[Outcome],
        found: Found | None = None,
        races: Sequence[RaceResult] = (),
    ) -> None:
        """Notes the answer; None: there is none, so the user goes on with the baseline."""
        self.pick, self.outcomes, self.found, self.races = pick, outcomes, found, races

    def scored(self) -> Score:
        """The run in figures."""
        world, clock = self.world, self.bench.clock
        pick = self.pick or world.baseline
        best = world.optimum.samples_per_s
        believed = self.beliefs[-1][1] if self.beliefs else world.baseline
        fates = Counter("cut" if isinstance(one, Measured) and one.cut else one.fate for one in self.outcomes)
        return Score(
            strategy=self.strategy,
            world=world.name,
            kind=world.kind,
            has_gpu=world.has_gpu,
            budget_s=self.budget_s,
            seed=self.seed,
            score=world.true_samples_per_s(pick) / best,
            against_baseline=world.true_samples_per_s(pick) / world.true_samples_per_s(world.baseline),
            believed=world.true_samples_per_s(believed) / best,
            curve=tuple((at_s, world.true_samples_per_s(settings) / best) for at_s, settings in self.beliefs),
            spent_s=dict(clock.spent_s),
            wall_s=clock.now_s,
            probes=dict(Counter(one.kind for one in self.outcomes)),
            out_of_memory=self.bench.out_of_memory,
            fates=dict(fates),
            process_starts=self.bench.starts,
            pick=pick.to_json(),
            believed_settings=believed.to_json(),
            optimum=world.optimum.settings.to_json(),
            differs=_single_gains(world, believed),
            why=self.why,
        )


_WORKERS = ("num_workers", "prefetch_factor", "persistent_workers")


def _single_gains(world: World, pick: Settings) -> dict[str, float]:
    """What each knob alone would gain if it were the optimum's; workers come with what depends on them."""
    optimum, rate = world.optimum.settings, world.true_samples_per_s(pick)
    gains: dict[str, float] = {}
    for name in pick.differences(optimum):
        names: tuple[str, ...] = _WORKERS if name == "num_workers" else (name,)
        if name in _WORKERS[1:] and not (pick.num_workers and optimum.num_workers):
            continue
        if name == "batch_size":
            names = ("batch_size", "gradient_accumulation_steps")
        changed = pick.replace(**{one: getattr(optimum, one) for one in names})
        gains[name] = world.true_samples_per_s(changed) / rate - 1 if rate else 0.0
    return gains
