"""Does a tuned JSON train as fast where this package is missing? Plain torch against ``TrainStep``, interleaved.

    python benchmarks/round_trip.py [--config tuned.json] [--rounds 6] [--seconds 8] [--exported]

Each lap is a fresh process: ``plain_training.py`` (cannot import autotune; with ``--exported`` the script that
``torch-autotune export --to plain`` writes) or this file with ``--ours``. Prints both
rates per round and the ratio plain / TrainStep with its 95 % interval.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
WARM_UP_S = 3.0


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="tuned JSON of the demo; default: tune now, 55 s")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--exported", action="store_true", help="the exported script in place of a hand-written loop")
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(tuned_rate(arguments.config, arguments.seconds))
        return
    with tempfile.TemporaryDirectory() as folder:
        config = arguments.config or tune(Path(folder) / "tuned.json")
        exported = export_to(Path(folder), config) if arguments.exported else None
        compare(config, arguments.rounds, arguments.seconds, exported)


def tune(path: Path) -> Path:
    """Tunes the demo into ``path``."""
    from autotune.api import tune as tune_task
    from autotune.demo import demo_task

    config = tune_task(demo_task(), time_budget_s=55.0)
    config.save(path)
    print(config)
    return path


def export_to(folder: Path, config: Path) -> Path:
    """Writes the plain script of a config into ``folder``."""
    from autotune import TunedConfig
    from autotune.export import to

    (folder / "train.py").write_text(to(TunedConfig.load(config), "plain").text, encoding="utf-8")
    return folder


def compare(config: Path, rounds: int, seconds: float, exported: Path | None = None) -> None:
    """Alternates both kinds of process and prints the ratio."""
    from autotune.demo.crops import prepare_crops
    from autotune.measurement import mean_interval

    folder = str(prepare_crops())
    plain = [sys.executable, str(HERE / "plain_training.py"), str(config), folder, str(seconds)]
    if exported is not None:
        plain = [sys.executable, str(HERE / "exported_script.py"), str(exported), folder, str(seconds)]
    ours = [sys.executable, __file__, "--ours", "--config", str(config), "--seconds", str(seconds)]
    logs = []
    for number in range(rounds):
        order = (plain, ours) if number % 2 == 0 else (ours, plain)
        rates = {command[1]: lap(command) for command in order}
        logs.append(math.log(rates[plain[1]] / rates[ours[1]]))
        print(f"round {number + 1}: plain {rates[plain[1]]:.0f}, TrainStep {rates[ours[1]]:.0f} samples/s", flush=True)
    interval = mean_interval(logs)
    spread = f", 95 % interval {math.exp(interval.low):.3f} to {math.exp(interval.high):.3f}" if interval else ""
    print(f"plain / TrainStep: {math.exp(sum(logs) / len(logs)):.3f}{spread}, {rounds} rounds")


def lap(command: list[str]) -> float:
    """The rate a process prints."""
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def tuned_rate(path: Path, seconds: float) -> float:
    """Samples per second of steady training with loader, optimizer and step of the config."""
    from autotune import TunedConfig
    from autotune.demo import demo_task

    task = demo_task()
    config = TunedConfig.load(path, task=task)
    model = config.prepare(task.build_model())
    step = config.train_step(model, config.optimizer(model))
    loader = config.dataloader()
    chunk = math.lcm(config.settings.gradient_accumulation_steps, max(1, config.settings.num_workers))
    done = rows = 0
    began, start = time.perf_counter(), None
    while True:
        for batch in loader:
            step(batch)
            done += 1
            rows += len(batch[1])
            now = time.perf_counter()
            if done % chunk:
                continue
            if start is None and now - began > WARM_UP_S:
                start, rows = now, 0
            elif start is not None and now - start > seconds:
                return rows / (now - start)


if __name__ == "__main__":
    main()
