"""How long until a training is as good: plain PyTorch against the tuned config, its batch locked and free.

    python benchmarks/time_to_loss.py WORKLOAD [--size 10000] [--seeds 3] [--budget 120] [--out time-w2.json]

WORKLOAD is w2 or w3, which have held-out data. The target, seed by seed, is the loss on held-out data that plain
PyTorch has after two epochs. The tuned trainings get half as long again; each is a fresh process, and the order is
reversed for every other seed. Weights are kept eight times an epoch and judged after the training; between two
judgements the loss is taken as linear in time. Prints seconds to the target, tuned / default, per seed and as the
median with its 95 % interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune.api import tune
from benchmarks.probing import Ratio, described
from benchmarks.training import trained_in_child
from benchmarks.workloads import workload

EPOCHS = 2
SNAPSHOTS = 8
LONGER = 1.5
MOST_EPOCHS = 20
NO_LIMIT_S = 3600.0


def main() -> None:
    """Tunes twice, trains, compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=("w2", "w3"))
    parser.add_argument("--size", type=int, default=10_000, help="samples to train on, at most")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of tuning, for each of both")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        configs = {
            kind: tuned(arguments, kind == "locked", Path(folder) / f"{kind}.json") for kind in ("locked", "free")
        }
        runs = [compare(arguments, configs, seed) for seed in range(arguments.seeds)]
        kept = {kind: json.loads(path.read_text()) for kind, path in configs.items()}
    summary = {kind: say(kind, [one[kind]["ratio"] for one in runs]) for kind in configs}
    if arguments.out:
        facts = {"workload": arguments.workload, "size": arguments.size, "configs": kept}
        arguments.out.write_text(json.dumps({**facts, "summary": summary, "seeds": runs}, indent=1) + "\n")


def tuned(arguments: argparse.Namespace, locked: bool, path: Path) -> Path:
    """The tuner's answer, with the effective batch locked or free."""
    task = workload(arguments.workload, size=arguments.size).task()
    effective = "keep" if locked else None
    config = tune(task, time_budget_s=arguments.budget, effective_batch_size=effective, progress=False)
    config.save(path)
    print(f"{'locked' if locked else 'free'}: {described(config.settings, config.baseline)}", flush=True)
    return path


def compare(arguments: argparse.Namespace, configs: dict[str, Path], seed: int) -> dict[str, Any]:
    """One seed: plain PyTorch sets the target, the others are timed to it."""
    shared = {"size": arguments.size, "seed": seed, "snapshots": SNAPSHOTS}
    found: dict[str, Any] = {"default": trained_in_child(arguments.workload, epochs=EPOCHS, limit=NO_LIMIT_S, **shared)}
    curve = found["default"]["curve"]
    target = float(curve[-1][2])
    own_s = time_to(curve, target) or curve[-1][0]
    for kind in list(configs) if seed % 2 == 0 else list(configs)[::-1]:
        limit_s = LONGER * found["default"]["seconds"]
        run = trained_in_child(arguments.workload, config=configs[kind], epochs=MOST_EPOCHS, limit=limit_s, **shared)
        reached_s = time_to(run["curve"], target)
        found[kind] = {**run, "reached_s": reached_s, "ratio": None if reached_s is None else reached_s / own_s}
        said = f"{reached_s:.1f} s, {reached_s / own_s:.2f} of it" if reached_s else f"not within {limit_s:.1f} s"
        print(f"seed {seed}: loss {target:.3f} takes the defaults {own_s:.1f} s; {kind}: {said}", flush=True)
    return {"seed": seed, "target": target, "default_s": own_s, **found}


def time_to(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """Seconds until the loss is first down to ``target``; None: it never is.

    Args:
        curve: (seconds, samples, loss), in order.
        target: The loss.
    """
    before: Sequence[float] | None = None
    for point in curve:
        if point[2] <= target:
            if before is None:
                return point[0]
            share = (before[2] - target) / (before[2] - point[2])
            return before[0] + share * (point[0] - before[0])
        before = point
    return None


def say(kind: str, ratios: list[float | None]) -> dict[str, Any] | None:
    """The median over the seeds, printed; None where the target was missed."""
    reached = [one for one in ratios if one is not None]
    missed = len(ratios) - len(reached)
    ratio = Ratio.of(reached) if reached else None
    said = f"{ratio.text('seed')} of the defaults' time" if ratio else "never reached"
    print(f"{kind}: {said}" + (f"; {missed} of {len(ratios)} seeds missed the target" if missed else ""))
    return None if ratio is None else {**dataclasses.asdict(ratio), "missed": missed}


if __name__ == "__main__":
    main()
