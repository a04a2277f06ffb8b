"""How long does the second start of a script take, whose answer is stored?

    python benchmarks/second_start.py [--starts 5] [--budget 30]

Tunes a small task once into a store of its own, then starts a fresh process so often and times its ``autotune()`` call:
the start of the isolated process, a description of the task, and the safe step. Prints the median and the slowest; the
promise is 5 s on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = """
import sys, time
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import autotune

def sgd(params):
    return torch.optim.SGD(params, lr=0.1)

if __name__ == "__main__":
    rows = TensorDataset(torch.randn(20000, 64), torch.zeros(20000, dtype=torch.long))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
    began = time.perf_counter()
    tuned = autotune(model, rows, loss_fn=nn.CrossEntropyLoss(), optimizer=sgd, progress=False,
                     time_budget_s=float(sys.argv[1]))
    print(time.perf_counter() - began, "before it was returned" in tuned.evidence.reason, tuned.evidence.reason)
"""


def main() -> None:
    """Prints the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--budget", type=float, default=30.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "second_start_task.py"
        script.write_text(SCRIPT)
        env = {**os.environ, "AUTOTUNE_CACHE_DIR": str(Path(folder) / "cache")}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
        runs = [_start(script, chosen.budget, env) for _ in range(chosen.starts + 1)]
    print(f"first start: {runs[0][0]:.1f} s ({runs[0][2]})")
    later = [seconds for seconds, stored, _ in runs[1:] if stored]
    if not later:
        print("nothing was stored: the baseline was kept for noise or for lack of time; run it on a quieter machine")
        return
    print(f"{len(later)} of {chosen.starts} starts were answered from the store", end=": ")
    print(f"{statistics.median(later):.1f} s in the median, {max(later):.1f} s at most")


def _start(script: Path, budget_s: float, env: dict[str, str]) -> tuple[float, bool, str]:
    command = [sys.executable, str(script), str(budget_s)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    seconds, stored, reason = done.stdout.splitlines()[-1].split(" ", 2)
    return float(seconds), stored == "True", reason


if __name__ == "__main__":
    main()
