"""The product's own planner, study, race and verdict, driven as one call of ``autotune()`` drives them."""

from __future__ import annotations

from typing import Any, cast

from autotune.api.run import Run
from autotune.config.verdict import judge
from autotune.measurement import Measured, Outcome
from autotune.planner import CPU, GPU, Plan
from autotune.report.narrator import Narrator
from autotune.study import Study
from benchmarks.simulated.trace import Trace
from benchmarks.simulated.world import World

__all__ = ["ours"]


def ours(world: World, budget_s: float, seed: int) -> Trace:
    """One call with ``time_budget_s=budget_s``."""
    bench = world.bench(seed)
    trace = Trace(world=world, strategy="ours", budget_s=budget_s, seed=seed, bench=bench)
    bench.start()
    pace = GPU if world.hardware.accelerator else CPU
    with Study(None, None, seed=seed) as study, Narrator(False, budget_s) as narrator:
        plan = Plan(
            candidates=world.candidates,
            hardware=world.hardware,
            pace=pace,
            study=study,
            run=bench.run,
            clock=bench.clock,
            budget_s=budget_s,
            started_s=0.0,
            say=lambda outcome: _noted(trace, plan, outcome),
            seed=seed,
        )
        # Run asks its sandbox for nothing.
        run = Run(plan=plan, run=bench.run, sandbox=cast(Any, None), study=study, narrator=narrator, pace=pace)
        run.go()
        verdict = judge(
            plan.candidates.baseline,
            run.outcome,
            run.races,
            outcomes=study.outcomes,
            dropped=plan.candidates.dropped,
            warnings=(),
            spent_s={},
        )
        trace.finish(verdict.settings, outcomes=study.outcomes, found=run.outcome, races=run.races)
        trace.why = verdict.evidence.reason
    return trace


def _noted(trace: Trace, plan: Plan, outcome: Outcome) -> None:
    best = plan.ledger.best
    if isinstance(outcome, Measured) and best is not None:
        trace.believe(best.settings)
