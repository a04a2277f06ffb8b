"""Is the time budget kept, and where does it go? The demo's task, tuned once for each budget in a process of its own.

python benchmarks/budgets.py [--budgets 5 15 30 60 120] [--runs 1] [--out budgets.json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Runs the budgets one after the other, the whole list as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budgets", type=float, nargs="+", default=[5, 15, 30, 60, 120])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print("\n" + json.dumps(tuned(arguments.child)))
        return
    found = [asked(budget_s) for _ in range(arguments.runs) for budget_s in arguments.budgets]
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def asked(budget_s: float) -> dict[str, Any]:
    """One budget, printed."""
    command = [sys.executable, __file__, "--child", str(budget_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    speedup = result["speedup"]
    ratio = "not raced"
    if speedup:
        ratio = f"{speedup['median']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f}, {speedup['rounds']} rounds)"
    spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in result["spent_s"].items())
    print(
        f"{budget_s:.0f} s: {result['wall_s']:.1f} s = {result['wall_s'] / budget_s:.2f} of it; {ratio}; "
        f"{result['trials']} trials; {spent}; {result['reason']}",
        flush=True,
    )
    return result


def tuned(budget_s: float) -> dict[str, Any]:
    """The demo's task, tuned in this process."""
    from autotune.api import tune
    from autotune.demo import demo_task

    task = demo_task()
    began = time.perf_counter()
    config = tune(task, time_budget_s=budget_s, progress=False)
    wall_s = time.perf_counter() - began
    evidence = config.evidence.to_json()
    kept = ("speedup", "kept_baseline", "reason", "spent_s", "trials", "warnings")
    settings = {"settings": config.settings.to_json()}
    return {"budget_s": budget_s, "wall_s": wall_s, **{name: evidence[name] for name in kept}, **settings}


if __name__ == "__main__":
    main()
