"""Do two machines that re-tune into one folder at once both land? Nothing may be lost.

    python benchmarks/profile_store.py [--rounds 50]

Two processes, each with a fake machine of its own, re-tune the same task into one shared folder, and both append to its
change log and metrics; the study and the races are stand-ins that end at once, the store, its locks and its files are
real. Each round drifts, so each is rewritten. Afterwards every result of both must be there: the last one in force, the
twenty before it in the history, in order, one line of metrics and one of changes for each. The same in one file of
entries, in turns with the folder. Prints the counts and the time per re-tune, and exits with 1 where one is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SAMPLE = Path(__file__).resolve().parents[1] / "tests" / "config" / "data" / "version_1.json"
MACHINES = (4, 8)  # cores
TASK = "sha256:shared"
FORMS = ("folder", "file.json")


def main() -> int:
    """Runs both machines, or one machine's rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--cores", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--within", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.within is not None:
        one_machine(chosen.within, chosen.cores, chosen.rounds)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return min(1, shared(Path(folder), chosen.rounds))


def shared(within: Path, rounds: int) -> int:
    """Both machines at once; how many results are missing."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--within", str(within), "--cores"]
    running = [
        subprocess.Popen([*command, str(cores)], stdout=subprocess.PIPE, text=True, stdin=subprocess.PIPE)
        for cores in MACHINES
    ]
    for process in running:  # both have imported everything: now they meet
        assert process.stdout is not None
        process.stdout.readline()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    seconds = [json.loads(process.communicate()[0]) for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("a process failed")
    total = 0
    for name in FORMS:
        lost = missing(within / name, rounds)
        each = [one for times in seconds for one in times[name]]
        print(
            f"{name}: {len(MACHINES)} processes x {rounds} re-tunes, {len(lost)} lost; a re-tune took "
            f"{statistics.median(each) * 1e3:.0f} ms in the median, {max(each) * 1e3:.0f} ms at most"
        )
        for said in lost:
            print(f"  {said}")
        total += len(lost)
    return total


def missing(path: Path, rounds: int) -> list[str]:
    """What should be in the store and is not."""
    from autotune.nightly.journal import CHANGES, METRICS
    from autotune.profiles import HISTORY, Key, Profiles

    store, lost = Profiles(path), []
    for cores in MACHINES:
        entry = store.entry(Key(task=TASK, hardware=machine(cores).fingerprint))
        found = [one["document"]["evidence"]["trials"] for one in entry.results] if entry else []
        wanted = list(range(rounds - 1, max(-1, rounds - HISTORY - 2), -1))
        if found != wanted:
            lost.append(f"{cores} cores: results {found} instead of {wanted}")
    for name in (CHANGES, METRICS):
        file = path.with_name(f"{path.stem}.{name}") if path.suffix == ".json" else path / name
        lines = file.read_text().splitlines()
        if len(lines) != rounds * len(MACHINES) or not all(line.strip() for line in lines):
            lost.append(f"{name}: {len(lines)} lines")
    if left := [str(one) for one in path.parent.rglob("*.part")] + [str(one) for one in path.parent.rglob("*damaged*")]:
        lost.append(f"left behind: {left}")
    return lost


def one_machine(within: Path, cores: int, rounds: int) -> None:
    """Re-tunes so many times on one fake machine into each form of store, and prints the seconds of each."""
    from autotune.nightly import Rules, note, retune
    from autotune.profiles import Profiles

    world = _World(cores)
    stores = {name: Profiles(within / name) for name in FORMS}
    seconds: dict[str, list[float]] = {name: [] for name in FORMS}
    print("ready", flush=True)
    sys.stdin.readline()
    for world.number in range(rounds):
        for name, store in stores.items():
            began = time.perf_counter()
            note(retune(world.task, store, name="shared", rules=Rules(), seams=world.seams()), store)
            seconds[name].append(time.perf_counter() - began)
    print(json.dumps(seconds))


def machine(cores: int) -> Any:
    """This machine with other cores."""
    from autotune.hardware import Hardware

    return dataclasses.replace(Hardware.detect(device="cpu"), cores=cores, cpu_model="fake")


class _World:
    """Each round the settings of the round before have drifted, and a study finds others that are faster."""

    def __init__(self, cores: int) -> None:
        import torch
        from torch import nn
        from torch.utils.data import TensorDataset

        from autotune import Task

        self.hardware = machine(cores)
        self.number = 0
        self.seconds = 0.0
        self.task = Task(nn.Linear(4, 2), TensorDataset(torch.zeros(8, 4), torch.zeros(8)), device="cpu")

    def seams(self) -> Any:
        from autotune.nightly.retune import Seams

        @contextlib.contextmanager
        def opened(_: Any) -> Iterator[Any]:
            yield self.here()

        @contextlib.contextmanager
        def lock(_: Any) -> Iterator[None]:
            yield  # each machine has a device of its own

        return Seams(opened=opened, tune=self.tune, busy=lambda *_: None, lock=lock, clock=lambda: self.seconds)

    def here(self) -> Any:
        from autotune.hardware import Limits
        from autotune.nightly import Here

        return Here(hardware=self.hardware, limits=Limits.of(self.hardware), fingerprint=TASK, run=self.run)

    def run(self, probe: Any) -> Any:
        from autotune.measurement import Chunk, Measured

        self.seconds += probe.window_s
        newest = probe.settings == self.settings(self.number)
        rate = 100_000 if probe.settings.prefetch_factor is None else 150_000 if newest else 102_000
        return Measured(kind=probe.kind, settings=probe.settings, chunks=(Chunk(rate, 100.0),))

    def settings(self, number: int) -> Any:
        from autotune import Settings

        return Settings(batch_size=32, num_workers=1, prefetch_factor=2 + number, persistent_workers=True)

    def tune(self, task: Any, **_: Any) -> Any:
        from autotune import Settings, TunedConfig
        from autotune.config import Speedup

        document = json.loads(SAMPLE.read_text("utf-8"))
        document["task"]["fingerprint"] = document["facts"]["fingerprint"] = TASK
        config = TunedConfig.from_json(document, task=task)
        won = Speedup(median=1.5, low=1.45, high=1.55, rounds=6)
        evidence = dataclasses.replace(config.evidence, speedup=won, kept_baseline=False, trials=self.number)
        return dataclasses.replace(
            config,
            settings=self.settings(self.number),
            baseline=Settings(batch_size=32),
            hardware=self.hardware,
            same_batch=None,
            evidence=evidence,
        )


if __name__ == "__main__":
    sys.exit(main())
