"""Many runs: every strategy on every task at every budget with every seed, in as many processes as asked."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from benchmarks.simulated.baselines import BASELINES
from benchmarks.simulated.drawing import draw_tasks
from benchmarks.simulated.ours import ours
from benchmarks.simulated.trace import Score, Trace
from benchmarks.simulated.world import BatchLimit, World, simulated_world

__all__ = ["STRATEGIES", "Job", "jobs_of", "play", "play_all"]

STRATEGIES: Mapping[str, Callable[[World, float, int], Trace]] = {"ours": ours, **BASELINES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to make."""

    strategy: str
    task_set: int
    task: int
    limit: BatchLimit
    budget_s: float
    seed: int
    as_in_study: bool = False
    """See ``SimulatedBench``."""


def jobs_of(
    *,
    strategies: Sequence[str],
    kinds: Iterable[str],
    budgets_s: Sequence[float],
    seeds: int,
    task_set: int = 0,
    limit: BatchLimit = "free",
    as_in_study: bool = False,
) -> list[Job]:
    """All combinations; a task's runs stand together."""
    wanted = set(kinds)
    tasks = [task.index for task in draw_tasks(task_set) if task.machine.kind in wanted]
    return [
        Job(
            strategy=strategy,
            task_set=task_set,
            task=task,
            limit=limit,
            budget_s=budget_s,
            seed=seed,
            as_in_study=as_in_study,
        )
        for task, strategy, budget_s, seed in itertools.product(tasks, strategies, budgets_s, range(seeds))
    ]


def play(job: Job) -> Score:
    """One run."""
    world = _world(job.task_set, job.task, job.limit, job.as_in_study)
    return STRATEGIES[job.strategy](world, job.budget_s, job.seed).scored()


def play_all(jobs: Sequence[Job], *, processes: int = 1) -> list[Score]:
    """All runs, in the order of ``jobs``."""
    if processes <= 1:
        return [play(job) for job in jobs]
    context = multiprocessing.get_context("spawn")  # torch is loaded: a fork could inherit a held lock
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return list(pool.map(play, jobs, chunksize=max(1, len(jobs) // (8 * processes))))


@cache
def _world(task_set: int, task: int, limit: BatchLimit, as_in_study: bool) -> World:
    return simulated_world(draw_tasks(task_set)[task], limit, as_in_study=as_in_study)
