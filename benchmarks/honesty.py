"""Does a real training run at the rate that the result promises?

    python benchmarks/honesty.py WORKLOAD [--runs 6] [--budget 60] [--config tuned.json] [--out honesty-w1.json]

Tunes once, or takes ``--config``. Then fresh processes train with the emitted loader, optimizer and step (``tuned``),
and, as a control, with plain PyTorch (``defaults``, against the promised rate of the baseline), in turns, the order
reversed each round: two epochs or 30 s, whichever ends first; each line says which. The rate leaves out the first step,
which a process pays once, and holds the ends of epochs. Prints real / promised per run and the median with the 95 %
interval of the mean; beside it the median with the first step counted in, and both kinds against each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune import TunedConfig
from autotune.api import tune
from benchmarks.probing import OTHERS_CORES, Ratio, described
from benchmarks.training import trained_in_child
from benchmarks.workloads import NAMES, workload

EPOCHS, LIMIT_S = 2, 30.0


def main() -> None:
    """Tunes, trains, compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=NAMES)
    parser.add_argument("--runs", type=int, default=6, help="of each kind")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tuning")
    parser.add_argument("--config", type=Path, help="a tuned JSON of this workload, in place of tuning")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="few samples, trainings of 1 s")
    arguments = parser.parse_args()
    size = 3000 if arguments.tiny else None
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.config or tuned(arguments.workload, arguments.budget, size, Path(folder) / "tuned.json")
        promises = promised(TunedConfig.load(path))
        limit_s = 1.0 if arguments.tiny else LIMIT_S
        runs = compare(arguments.workload, path, promises, runs=arguments.runs, size=size, limit_s=limit_s)
        config = json.loads(path.read_text())
    summary = say(runs)
    if arguments.out:
        facts = {"workload": arguments.workload, "promised_samples_per_s": promises, "config": config}
        arguments.out.write_text(json.dumps({**facts, "summary": summary, "runs": runs}, indent=1) + "\n")


def tuned(name: str, budget_s: float, size: int | None, path: Path) -> Path:
    """Tunes the workload into ``path``."""
    config = tune(workload(name, size=size).task(), time_budget_s=budget_s, progress=False)
    config.save(path)
    print(
        f"{name}, {budget_s:.0f} s: {described(config.settings, config.baseline)}; {config.evidence.reason}", flush=True
    )
    return path


def promised(config: TunedConfig) -> dict[str, float]:
    """Samples per second that the result promises, of its settings and of the baseline."""
    evidence = config.evidence
    if not evidence.samples_per_s or not evidence.baseline_samples_per_s:
        raise SystemExit(f"the result promises no rate: {evidence.reason}")
    return {"tuned": evidence.samples_per_s, "defaults": evidence.baseline_samples_per_s}


def compare(
    name: str, path: Path, promises: dict[str, float], *, runs: int, size: int | None, limit_s: float
) -> list[dict[str, Any]]:
    """Trains with both in turns."""
    found = []
    for number in range(runs):
        kinds = list(promises) if number % 2 == 0 else list(promises)[::-1]
        for kind in kinds:
            config = path if kind == "tuned" else None
            one = trained_in_child(name, config=config, size=size, seed=number, epochs=EPOCHS, limit=limit_s)
            ratio = one["samples_per_s"] / promises[kind]
            found.append({"kind": kind, "real_over_promised": ratio, **one})
            print(
                f"run {number + 1} {kind}: real {one['samples_per_s']:.0f}, promised {promises[kind]:.0f} samples/s, "
                f"{ratio:.3f}; ended by {one['ended_by']} ({one['seconds']:.1f} s, {one['epochs']} whole epochs)"
                + (f"; others used {one['others_cores']:.2f} cores" if one["others_cores"] else ""),
                flush=True,
            )
    return found


def say(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and interval of each kind, and of one against the other round by round, printed.

    Rounds in which other processes used the CPU are left out where at least half remain.
    """
    kinds = list(dict.fromkeys(one["kind"] for one in runs))
    rounds = [
        {one["kind"]: one for one in runs[start : start + len(kinds)]} for start in range(0, len(runs), len(kinds))
    ]
    quiet = [r for r in rounds if all((one["others_cores"] or 0.0) <= OTHERS_CORES for one in r.values())]
    kept = quiet if 2 * len(quiet) >= len(rounds) else rounds
    print(f"{len(rounds) - len(quiet)} of {len(rounds)} rounds disturbed, {len(kept)} counted")
    ratios = {kind: [r[kind]["real_over_promised"] for r in kept] for kind in kinds}
    summary = {}
    for kind in kinds:
        ratio = Ratio.of(ratios[kind])
        start = [r[kind]["samples_per_s_with_start"] / r[kind]["samples_per_s"] for r in kept]
        with_start = Ratio.of([one * share for one, share in zip(ratios[kind], start, strict=True)])
        summary[kind] = {"ratio": dataclasses.asdict(ratio), "with_start": dataclasses.asdict(with_start)}
        print(f"{kind}: real / promised {ratio.text('run')}; with the first step {with_start.median:.2f}")
    relative = Ratio.of([tuned / control for tuned, control in zip(*ratios.values(), strict=True)])
    print(f"{' / '.join(kinds)}, round by round (what drifted since tuning cancels): {relative}")
    return {**summary, "relative": dataclasses.asdict(relative)}


if __name__ == "__main__":
    main()
