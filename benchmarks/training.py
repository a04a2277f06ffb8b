"""Real training of a workload in a process of its own: plain PyTorch as in its tutorials, or what a config emits.

    python benchmarks/training.py WORKLOAD [--config tuned.json] [--epochs 2] [--limit 30]

Prints JSON: what was trained, how long it took, and the rates with and without the start. With ``--snapshots`` weights
are kept on the way and judged on held-out data afterwards, so that judging does not let the loader catch up.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from autotune import TunedConfig
from autotune.hardware import CpuMeter
from benchmarks.workloads import NAMES, Workload, workload

__all__ = ["Loop", "Trained", "plain_loop", "train", "trained_in_child", "tuned_loop"]

_JUDGED_SAMPLES = 2000  # enough to tell losses apart, and soon done


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What a training needs."""

    model: nn.Module
    loader: Iterable[Any]
    step: Callable[[Any], Tensor]
    end_epoch: Callable[[], object] = lambda: None


@dataclass(slots=True, kw_only=True)
class Trained:
    """What one training did."""

    samples: int = 0
    first_samples: int = 0
    """Of these, in the first batch."""
    seconds: float = 0.0
    """From asking for the first batch to the end of the last step."""
    start_s: float = 0.0
    """Of these, to the end of the first step."""
    epochs: int = 0
    """Whole ones."""
    ended_by: str = "epochs"
    others_cores: float | None = None
    """CPU cores' worth that other processes used meanwhile."""
    snapshots: list[tuple[float, int, dict[str, Tensor]]] = field(default_factory=list)
    """Seconds, samples and weights."""

    @property
    def samples_per_s(self) -> float:
        """Without the first batch: what a long training runs at, ends of epochs included."""
        return (self.samples - self.first_samples) / (self.seconds - self.start_s)

    def to_json(self) -> dict[str, Any]:
        """Figures alone."""
        figures = {name: value for name, value in asdict(self).items() if name != "snapshots"}
        rates = {"samples_per_s": self.samples_per_s, "samples_per_s_with_start": self.samples / self.seconds}
        return {**figures, **rates}


def main() -> None:
    """One training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=NAMES)
    parser.add_argument("--config", type=Path, help="a tuned JSON of this workload; default: plain PyTorch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=30.0, help="seconds after which it stops wherever it is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, help="about so few samples")
    parser.add_argument("--snapshots", type=int, default=0, help="so many per epoch")
    arguments = parser.parse_args()
    job = workload(arguments.workload, size=arguments.size)
    loop = plain_loop(job, arguments.seed) if arguments.config is None else tuned_loop(job, arguments)
    every = max(1, _length(job) // arguments.snapshots) if arguments.snapshots else None
    trained = train(loop, epochs=arguments.epochs, limit_s=arguments.limit, snapshot_every=every)
    curve = [(seconds, samples, judged(job, weights)) for seconds, samples, weights in trained.snapshots]
    print("\n" + json.dumps({**trained.to_json(), "curve": curve}))


def trained_in_child(name: str, **options: Any) -> dict[str, Any]:
    """``main`` in a process of its own; options as on its command line, None left out."""
    command = [sys.executable, __file__, name]
    for option, value in options.items():
        command += [] if value is None else [f"--{option}", str(value)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def plain_loop(job: Workload, seed: int) -> Loop:
    """PyTorch's defaults with the workload's batch size."""
    torch.manual_seed(seed)
    device = _device()
    model = job.model().to(device)
    optimizer = job.optimizer(model.parameters())

    def step(batch: Any) -> Tensor:
        inputs, targets = (part.to(device) for part in batch)
        optimizer.zero_grad()
        loss = job.loss_fn(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return Loop(model=model, loader=job.loader(), step=step)


def tuned_loop(job: Workload, arguments: argparse.Namespace) -> Loop:
    """Loader, optimizer and step that the config emits."""
    torch.manual_seed(arguments.seed)
    task = job.task()
    config = TunedConfig.load(arguments.config, task=task)
    model = config.prepare(task.build_model())
    step = config.train_step(model, config.optimizer(model))
    return Loop(model=model, loader=config.dataloader(), step=step, end_epoch=step.flush)


def train(
    loop: Loop,
    *,
    epochs: int,
    limit_s: float,
    snapshot_every: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Trained:
    """Trains until the epochs or the seconds are over, whichever comes first.

    Args:
        loop: Model, loader and step.
        epochs: Passes over the data.
        limit_s: Seconds.
        snapshot_every: Samples between two snapshots of the weights; None: none. Taking them is not timed.
        clock: Seconds.
    """
    seen = Trained()
    meter = CpuMeter()
    meter.start()
    began, loss = clock(), None
    for rows, loss in _steps(loop, epochs, seen):
        seen.samples += rows
        if not seen.first_samples:
            float(loss)  # waits for an accelerator
            seen.first_samples, seen.start_s = rows, clock() - began
        if snapshot_every and seen.samples >= (len(seen.snapshots) + 1) * snapshot_every:
            float(loss)
            paused = clock()
            weights = copy.deepcopy(loop.model.state_dict())
            seen.snapshots.append((paused - began, seen.samples, weights))
            began += clock() - paused
        if clock() - began >= limit_s:
            seen.ended_by = f"{limit_s:g} s"
            break
    if loss is not None:
        float(loss)
    seen.seconds = clock() - began
    seen.others_cores = meter.stop()
    return seen


def judged(job: Workload, weights: dict[str, Tensor]) -> float:
    """Mean loss on the held-out data, its first 2,000 samples at most."""
    if job.held_out is None:
        raise SystemExit(f"{job.name} has no held-out data")
    device = _device()
    model = job.model().to(device)
    model.load_state_dict(weights)
    model.eval()
    total, rows = 0.0, 0
    with torch.no_grad():
        loader = DataLoader(job.held_out(), batch_size=job.batch_size, collate_fn=job.collate_fn)
        for batch in islice(loader, _JUDGED_SAMPLES // job.batch_size):
            inputs, targets = (part.to(device) for part in batch)
            total += float(job.loss_fn(model(inputs), targets)) * len(targets)
            rows += len(targets)
    return total / rows


def _steps(loop: Loop, epochs: int, seen: Trained) -> Iterator[tuple[int, Tensor]]:
    for _ in range(epochs):
        for batch in loop.loader:
            yield len(batch[1]), loop.step(batch)
        loop.end_epoch()
        seen.epochs += 1


def _length(job: Workload) -> int:
    return len(job.dataset())  # type: ignore[arg-type]


def _device() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


if __name__ == "__main__":
    main()
