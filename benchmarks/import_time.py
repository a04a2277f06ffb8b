"""What `import autotune` costs: the median of fresh interpreters, beside one that imports nothing.

    python benchmarks/import_time.py [--runs 10]

The two are started in turns, so that a busy machine hits both alike.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

NOTHING = "pass"
PACKAGE = "import autotune"


def start_ms(code: str) -> float:
    """Wall time of one fresh interpreter running ``code``, in milliseconds."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - began) * 1e3


def medians_ms(runs: int) -> dict[str, float]:
    """Median over ``runs`` interpreters for each of the two, in turns."""
    start_ms(PACKAGE)  # untimed: compiles the bytecode and warms the file cache
    laps = [(start_ms(NOTHING), start_ms(PACKAGE)) for _ in range(runs)]
    nothing, package = zip(*laps, strict=True)
    return {NOTHING: statistics.median(nothing), PACKAGE: statistics.median(package)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Median start time of fresh interpreters.")
    parser.add_argument("--runs", type=int, default=10, help="interpreters of each kind (default: 10)")
    medians = medians_ms(parser.parse_args().runs)
    for code, median in medians.items():
        print(f"python -c {code!r:18} {median:7.1f} ms")
    print(f"{'import alone':28} {medians[PACKAGE] - medians[NOTHING]:7.1f} ms")


if __name__ == "__main__":
    main()
