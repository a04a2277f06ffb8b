"""Search strategies on simulated machines, or on recorded ones: how near to the optimum they come, and how soon.

    python benchmarks/replay.py --check-model
    python benchmarks/replay.py --strategies ours random tpe presets descent --seeds 5 --jobs 2 --out replay.json
    python benchmarks/replay.py --recorded benchmarks/recorded/W1.json

Everything is simulated: no figure of this program was timed on hardware. `ours` is the product's own planner, study,
race and verdict, asked as one call of `autotune()` asks them; the trials are answered on a simulated clock (see
`simulated/bench.py`). The others (`simulated/baselines.py`) pick what measured fastest, with no race at the end.

The score is the true rate of the pick over that of the optimum over all combinations. That optimum has knobs which the
product does not search: activation checkpointing where the batch fits, max-autotune, fp16 where bf16 is native. Three
limits of the effective batch, for strategies and optimum alike: `--free` (the default) up to 4,096 samples, as the
strategies were first compared; `--cap`, what the product does unless told otherwise (8 times the user's batch, 20
updates an epoch); `--locked`, the user's batch.

Set 1 of the tasks is for checking only: nothing may be tuned on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script's own folder is on the path, not this one

from benchmarks.simulated.machine import MACHINES
from benchmarks.simulated.runs import STRATEGIES, jobs_of, play_all
from benchmarks.simulated.summary import check_table, loss_tables, score_table, spent_table
from benchmarks.simulated.trace import Score

__all__ = ["main"]

_CHECK_SEEDS = 60  # seven CPU tasks are few: with 20 seeds medians differ by .1 from one 20 to the next


def main(arguments: Sequence[str] | None = None) -> None:
    """Plays and prints."""
    asked = _parser().parse_args(arguments)
    if asked.check_model:
        scores = _checked(asked)
    else:
        scores = _played(asked)
        print("\n".join((*score_table(scores), "", *spent_table(scores))))
        own = [one for one in scores if one.strategy == "ours"]
        if own:
            print("\n".join(("", "Where ours loses:", "", *loss_tables(own))))
    if asked.out:
        asked.out.write_text(json.dumps([dataclasses.asdict(one) for one in scores]) + "\n")
    if asked.plot:
        from benchmarks.simulated.plot import plot

        plot(scores, asked.plot)


def _played(asked: argparse.Namespace) -> list[Score]:
    if asked.recorded:
        from benchmarks.simulated.recorded import load_table, recorded_world

        world = recorded_world(load_table(asked.recorded))
        return [
            STRATEGIES[strategy](world, budget_s, seed).scored()
            for strategy in asked.strategies
            for budget_s in asked.budgets
            for seed in range(asked.seeds)
        ]
    jobs = jobs_of(
        strategies=asked.strategies,
        kinds=asked.kinds,
        budgets_s=asked.budgets,
        seeds=asked.seeds,
        task_set=asked.task_set,
        limit=asked.limit,
    )
    print(f"Simulated: task set {asked.task_set}, {asked.seeds} seeds, batch {asked.limit}, {len(jobs)} runs.\n")
    return play_all(jobs, processes=asked.jobs)


def _checked(asked: argparse.Namespace) -> list[Score]:
    """The study's two rows, with trials as it had them: no process to start, the briefest warm-up."""
    seeds = asked.seeds if asked.seeds_given else _CHECK_SEEDS
    jobs = jobs_of(
        strategies=("random", "tpe"), kinds=MACHINES, budgets_s=(60.0, 120.0, 300.0), seeds=seeds, as_in_study=True
    )
    scores = play_all(jobs, processes=asked.jobs)
    print("\n".join(check_table(scores)))
    return scores


class _Given(argparse.Action):
    """Remembers that it was asked for."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, *_: object
    ) -> None:
        setattr(namespace, self.dest, values)
        setattr(namespace, f"{self.dest}_given", True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(MACHINES), default=list(MACHINES))
    parser.add_argument("--budgets", nargs="+", type=float, default=[60.0, 120.0, 300.0], metavar="SECONDS")
    parser.add_argument("--seeds", type=int, default=2, action=_Given)
    parser.add_argument("--task-set", type=int, default=0, help="1 is for checking only")
    parser.add_argument("--strategies", nargs="+", choices=list(STRATEGIES), default=["ours"])
    for limit in ("free", "cap", "locked"):
        parser.add_argument(f"--{limit}", dest="limit", action="store_const", const=limit)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help="all runs as JSON")
    parser.add_argument("--plot", type=Path, help="score against time spent (needs matplotlib)")
    parser.add_argument("--recorded", type=Path, help="a table that oracle.py wrote")
    parser.add_argument("--check-model", action="store_true", help="random and TPE beside the study to be repeated")
    parser.set_defaults(limit="free", seeds_given=False)
    return parser


if __name__ == "__main__":
    main()
