"""Runs the demo several times, each in a process of its own, and prints ratio, interval and wall time of each.

python benchmarks/demo_runs.py [--runs 5] [--out runs.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Runs the demos one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = [run(number + 1) for number in range(arguments.runs)]
    ratios = [one["result"]["speedup"]["median"] for one in runs if one["result"]["speedup"]]
    if ratios:
        print(
            f"ratio: median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} runs"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(runs, indent=1) + "\n")


def run(number: int) -> dict[str, Any]:
    """One demo."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "autotune", "demo", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    wall_s = time.perf_counter() - began
    result = json.loads(done.stdout)
    speedup, training = result["speedup"], result["training"]
    ratio = "not raced"
    if speedup:
        ratio = f"{speedup['median']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f}, {speedup['rounds']} rounds)"
    print(
        f"run {number}: {ratio}, {'baseline kept' if result['kept_baseline'] else 'tuned'}, wall {wall_s:.0f} s, real "
        f"{training['defaults']['samples_per_s']:.0f} -> {training['tuned']['samples_per_s']:.0f} samples/s, loss "
        f"{training['tuned']['first_loss']:.2f} -> {training['tuned']['last_loss']:.2f}",
        flush=True,
    )
    return {"wall_s": wall_s, "result": result}


if __name__ == "__main__":
    main()
