"""The learning rate of every optimizer step over three epochs with accumulation, beside torch's own schedulers.

    python benchmarks/schedules.py [--plot schedules.png] [--json]

A small network on 1,000 samples, batches of 16 in groups of 4 (the last batch of an epoch has 8, its last group 3
batches: 16 optimizer steps per epoch), trained by ``TrainStep`` with ``tuned.scheduler(optimizer)``. Beside it
stands the class that the config's JSON names, built from that JSON alone over a bare optimizer, stepped as often.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, lr_scheduler
from torch.utils.data import TensorDataset

from autotune import Settings, Task, TunedConfig
from autotune.config import Evidence
from autotune.hardware import Hardware, Limits
from autotune.learning_rate import LearningRatePlan, ScheduleKind
from autotune.trial import Bench

SAMPLES, EPOCHS = 1000, 3
KINDS: dict[ScheduleKind, dict[str, Any]] = {
    "onecycle": {},
    "cyclic": {"half_cycle_epochs": 0.5},
    "cosine": {"warmup_epochs": 0.5},
    "step": {},
    "multistep": {},
    "plateau": {"patience": 0},
}
FIGURES = (1.0, 2.0, 2.0)
"""What the plateau watches, by epoch: it gets worse once."""


def config() -> TunedConfig:
    """Batches of 16, four of them a step."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 8, generator=generator), torch.arange(SAMPLES) % 2)
    task = Task(
        lambda: nn.Linear(8, 2),
        data,
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: SGD(parameters, lr=0.1),
        device="cpu",
    )
    hardware = Hardware.detect(device="cpu")
    facts = Bench(task, hardware, Limits.of(hardware)).describe()
    return TunedConfig(
        settings=Settings(batch_size=16, gradient_accumulation_steps=4),
        baseline=Settings(batch_size=64),
        learning_rate=LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=()),
        facts=facts,
        hardware=hardware,
        evidence=Evidence(kept_baseline=False, reason="not tuned"),
        task=task,
    )


def trained(tuned: TunedConfig) -> list[float]:
    """The learning rate of each optimizer step of a real training."""
    model = tuned.prepare(tuned.task.build_model()) if tuned.task else nn.Linear(8, 2)
    optimizer = tuned.optimizer(model)
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(float(optimizer.param_groups[0]["lr"])))
    scheduler = tuned.scheduler(optimizer)
    by_epoch = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    step = tuned.train_step(model, optimizer, None if by_epoch else scheduler)
    for epoch in range(EPOCHS):
        for batch in tuned.dataloader():
            step(batch)
        step.flush()
        if by_epoch:
            scheduler.step(FIGURES[epoch])
    return rates


def torchs_own(document: dict[str, Any], steps: int) -> list[float]:
    """The same from the JSON, without this package."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=document["optimizer"]["kwargs"]["lr"])
    section = document["scheduler"]
    parts = [getattr(lr_scheduler, _class(one))(optimizer, **one["kwargs"]) for one in section["schedulers"]]
    made = getattr(lr_scheduler, _class(section))(optimizer, *([parts] if parts else []), **section["kwargs"])
    rates = []
    for step in range(1, steps + 1):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if section["interval"] == "step":
            made.step()
        elif step % section["updates_per_epoch"] == 0:
            made.step(FIGURES[step // section["updates_per_epoch"] - 1])
    return rates


def _class(section: dict[str, Any]) -> str:
    return str(section["name"]).rpartition(".")[2]


def traces() -> dict[str, tuple[list[float], list[float]]]:
    """For each kind: the rates trained with, and torch's own."""
    base, found = config(), {}
    for kind, options in KINDS.items():
        tuned = base.with_schedule(EPOCHS, kind=kind, **options)
        rates = trained(tuned)
        found[kind] = (rates, torchs_own(tuned.to_json(), len(rates)))
    return found


def plot(found: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    """One panel for each kind: torch's own as a line, the rates trained with as dots."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, (kind, (rates, own)) in zip(figure.subplots(2, 3, sharex=True).flat, found.items(), strict=True):
        axes.plot(own, color="tab:orange", label="torch's own")
        axes.plot(rates, ".", color="tab:blue", markersize=4, label="trained with")
        axes.set(title=kind, xlabel="optimizer step", ylabel="learning rate")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right")
    figure.savefig(path, dpi=80)


def main() -> None:
    """Prints how far the two are apart, at most; ends with 1 where they are not equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="picture to write (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    found = traces()
    apart = {kind: max(abs(one - other) for one, other in zip(*both, strict=True)) for kind, both in found.items()}
    if arguments.json:
        print(json.dumps({kind: {"trained": rates, "torch": own} for kind, (rates, own) in found.items()}))
    else:
        for kind, (rates, _) in found.items():
            print(
                f"{kind:10} {len(rates)} optimizer steps, {min(rates):.3g} to {max(rates):.3g}; apart {apart[kind]:.1g}"
            )
    if arguments.plot is not None:
        plot(found, arguments.plot)
    sys.exit(any(apart.values()))


if __name__ == "__main__":
    main()
