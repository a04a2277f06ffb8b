"""How close does ``autotune()`` come to the best of a grid, and what does it take?

    python benchmarks/oracle.py WORKLOAD [--points 80] [--locked] [--budgets 60 120 300] [--out oracle-w1.json]
    python benchmarks/oracle.py WORKLOAD --table benchmarks/recorded/w1.json

Measures a grid in two passes of opposite order and keeps it in ``recorded/WORKLOAD.json`` (``--table`` takes one that
is there; ``--budgets`` without a number stops after it). The table's three fastest race each other, since the highest
of many noisy rates flatters; the first of them is the grid's best. Then each budget's answer races against it and the
baseline, in laps of 1.5 s, the order reversed each round. Prints, per budget, the score (answer / grid's best) and the
ratio over the baseline, with their 95 % intervals, the time spent and the probes. With ``--locked`` the effective batch
stays the baseline's everywhere. The grid holds nothing compiled and prefetches two batches, as torch does; the tuner
may do otherwise, so a score above 1 is possible. ``--tiny`` tries the program out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune import TunedConfig
from autotune.api import tune
from autotune.settings import Settings
from benchmarks.grid import fill
from benchmarks.probing import Bench, Interleaved, LapFailed, described, interleave, opened
from benchmarks.recording import Table, record
from benchmarks.workloads import NAMES, Workload, workload

RECORDED = Path(__file__).resolve().parent / "recorded"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured."""

    points: int = 80
    window_s: float = 1.5
    lap_s: float = 1.5
    rounds: int = 6
    refining_rounds: int = 4


TINY = Effort(points=5, window_s=0.2, lap_s=0.2, rounds=2, refining_rounds=1)


def main() -> None:
    """Table, tuning, races."""
    arguments = _arguments()
    effort = TINY if arguments.tiny else Effort(points=arguments.points)
    job = workload(arguments.workload, size=3000 if arguments.tiny else None)
    table = Table.read(arguments.table) if arguments.table else measured_table(job, arguments, effort)
    check(table, job, locked=arguments.locked)
    say_table(table)
    if not arguments.budgets:
        return
    answers = [tuned(job, budget_s, locked=arguments.locked) for budget_s in arguments.budgets]
    with opened(job, locked=arguments.locked) as bench:
        refined = interleave(bench.run, table.best[:3], rounds=effort.refining_rounds, lap_s=effort.lap_s)
        best = fastest(refined)
        print(f"grid's best, of {len(refined.entries)} raced: {described(best, table.baseline)}", flush=True)
        scored = [score(bench, answer, best, effort) for answer in answers]
    if arguments.out:
        facts = {"workload": job.name, "locked": arguments.locked, "machine": bench.hardware.to_json()}
        grid = {"grid_best": best.to_json(), "refined": refined.to_json(), "scatter_of_passes": table.scatter}
        arguments.out.write_text(json.dumps({**facts, **grid, "answers": scored}, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=NAMES)
    parser.add_argument("--points", type=int, default=Effort().points, help="settings in the grid, at most (1000: all)")
    parser.add_argument("--locked", action="store_true", help="keep the baseline's effective batch")
    parser.add_argument("--budgets", type=float, nargs="*", default=[60, 120, 300], help="seconds; none: table only")
    parser.add_argument("--table", type=Path, help="a recorded table, in place of measuring one")
    parser.add_argument("--record", type=Path, help="where the table goes; default: benchmarks/recorded/")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="few samples, few points, short laps")
    arguments = parser.parse_args()
    if arguments.tiny and not arguments.table and not arguments.record:
        parser.error("--tiny needs --record: its table is none to keep")
    return arguments


def measured_table(job: Workload, arguments: argparse.Namespace, effort: Effort) -> Table:
    """Measures the grid and keeps it."""
    path = arguments.record or RECORDED / f"{job.name}{'-locked' if arguments.locked else ''}.json"
    began = time.monotonic()
    with opened(job, locked=arguments.locked) as bench:
        points = fill(
            bench.run,
            bench.candidates,
            cores=bench.hardware.cores,
            points=effort.points,
            window_s=effort.window_s,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
    times = {"seconds": time.monotonic() - began, "process_start_s": bench.start_s}
    return record(path, points, bench.candidates, workload=job.name, machine=bench.hardware, **times)


def check(table: Table, job: Workload, *, locked: bool) -> None:
    """A table of something else is refused."""
    if (table.workload, table.locked) != (job.name, locked):
        raise SystemExit(f"the table is of {table.workload}, {'locked' if table.locked else 'not locked'}")
    if not table.best:
        raise SystemExit("no point of the table was measured to its end")


def say_table(table: Table) -> None:
    """The table in two lines."""
    rates = [sum(table.rates[one]) / len(table.rates[one]) for one in (table.best[-1], table.best[0])]
    print(
        f"{table.workload}{' locked' if table.locked else ''}: {len(table.rates)} points in {table.seconds:.0f} s, "
        f"{len(table.best)} measured to the end; {rates[0]:.0f} to {rates[1]:.0f} samples/s; "
        f"the two passes differ by {table.scatter:.1%} (median); others used the CPU in {table.disturbed} points",
        flush=True,
    )


def tuned(job: Workload, budget_s: float, *, locked: bool) -> tuple[TunedConfig, float, float]:
    """What the tuner returns, its budget, and the wall time it took."""
    task = job.task()
    began = time.perf_counter()
    config = tune(task, time_budget_s=budget_s, effective_batch_size="keep" if locked else None, progress=False)
    return config, budget_s, time.perf_counter() - began


def fastest(laps: Interleaved) -> Settings:
    """The setting with the highest mean over the rounds."""
    return max(laps.entries, key=laps.rate)


def score(bench: Bench, answer: tuple[TunedConfig, float, float], best: Settings, effort: Effort) -> dict[str, Any]:
    """Races one answer against the grid's best and the baseline, and prints it."""
    config, budget_s, wall_s = answer
    pick, baseline, evidence = config.settings, config.baseline, config.evidence.to_json()
    found: dict[str, Any] = {"budget_s": budget_s, "wall_s": wall_s, "settings": pick.to_json()}
    found |= {name: evidence[name] for name in ("trials", "kept_baseline", "reason", "spent_s", "warnings")}
    cost = f"{wall_s:.1f} s, {evidence['trials']} probes; {described(pick, baseline)}"
    try:
        laps = interleave(bench.run, (pick, best, baseline), rounds=effort.rounds, lap_s=effort.lap_s)
    except LapFailed as failure:
        print(f"{budget_s:.0f} s: no score, {failure}; {cost}", flush=True)
        return {**found, "failed": str(failure)}
    ratios = {
        "score": laps.ratio(pick, best),
        "over_baseline": laps.ratio(pick, baseline),
        "best_over_baseline": laps.ratio(best, baseline),
    }
    print(
        f"{budget_s:.0f} s: score {'1, the same settings' if pick == best else ratios['score']}; over the baseline "
        f"{ratios['over_baseline']} (the grid's best: {ratios['best_over_baseline']}); {cost}"
        + (f"; {laps.disturbed} rounds disturbed" if laps.disturbed else ""),
        flush=True,
    )
    return {**found, **{name: dataclasses.asdict(ratio) for name, ratio in ratios.items()}, "laps": laps.to_json()}


if __name__ == "__main__":
    main()
