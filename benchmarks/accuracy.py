"""Accuracy after four epochs under each learning-rate rule, and the time to the accuracy that the default reaches.

    python benchmarks/accuracy.py [fashion|text] [--seeds 3] [--epochs 4] [--budget 120] [--growth 8] [--out FILE]
    python benchmarks/accuracy.py fashion --tiny

``fashion``: a small convolutional network on Fashion-MNIST, SGD with momentum. ``text``: a two-layer transformer on
docstrings as bytes, AdamW. Both are the workloads' data, held-out data included; where Fashion-MNIST cannot be had, its
synthetic stand-in takes its place and stderr says so.

Each job is tuned once. Then it is trained from the same weights with each seed: as it was (default); tuned with the
batch kept; and tuned with the free batch (``--growth`` times the default where the tuner chose no larger one) under
each rule: bare, with the rule's warm-up, with one cycle, with a cosine. After each quarter of an epoch a copy of the
weights is kept, to be judged when the training is over. Times are those of training alone, loader included; the time to
the default's accuracy is the first time at which a training is as good as the default was at its end, as a share of the
default's whole time. Times mean something on a quiet machine only; accuracies do anywhere.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from autotune import Task, TunedConfig
from autotune.api import tune
from autotune.learning_rate import LearningRatePlan, LrScaling, scale
from benchmarks.workloads import Workload, workload

RULES: tuple[LrScaling | None, ...] = ("linear", "sqrt", None)
WAYS = ("bare", "warm-up", "onecycle", "cosine")
PARTS = 4  # of an epoch, after each of which the weights are kept
TINY = {"size": 512, "seeds": 1, "epochs": 2, "budget": 2.0}


class Grey(Dataset[tuple[Tensor, Tensor]]):
    """One channel of the workload's three equal ones."""

    def __init__(self, of: Dataset[Any]) -> None:
        self.of = of

    def __len__(self) -> int:
        return len(self.of)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, label = self.of[index]
        return image[:1], label


def small_net() -> nn.Module:
    """Two convolutions with BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


class SmallTransformer(nn.Module):
    """Two encoder layers over at most 128 bytes of width 64, their mean classified."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.embed, self.place = nn.Embedding(256, 64), nn.Parameter(torch.zeros(128, 64))
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(64, classes)

    def forward(self, texts: Tensor) -> Tensor:
        """Logits."""
        texts = texts[:, :128].clamp(max=255)
        hidden = self.encoder(self.embed(texts) + self.place[: texts.shape[1]], src_key_padding_mask=texts == 0)
        there = (texts > 0).unsqueeze(2)
        logits: Tensor = self.classify((hidden * there).sum(1) / there.sum(1).clamp(min=1))
        return logits


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """The default of ``fashion``."""
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


def job_of(name: str, size: int | None) -> Workload:
    """The job."""
    if name == "fashion":
        clothes = workload("w2", size=size)
        held_out = clothes.held_out
        assert held_out is not None
        return dataclasses.replace(
            clothes,
            model=small_net,
            optimizer=sgd,
            dataset=lambda: Grey(clothes.dataset()),
            held_out=lambda: Grey(held_out()),
        )
    text = workload("w3", size=size)
    with torch.no_grad():
        classes = text.model()(torch.ones(1, 16, dtype=torch.long)).shape[1]
    return dataclasses.replace(text, model=lambda: SmallTransformer(classes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training."""

    variant: str
    seed: int
    accuracies: tuple[float, ...]
    """On held-out data, after each part of an epoch."""
    seconds: tuple[float, ...]
    """Of training, until then."""
    diverged: bool = False


def variants(tuned: TunedConfig, epochs: int, growth: int) -> Iterator[tuple[str, TunedConfig]]:
    """Every way to train, by name."""
    kept = tuned.keep_batch()
    default = _planned(kept, None, warmup=False, settings=tuned.baseline)
    yield "default", default
    yield "batch kept", kept
    free = tuned.settings
    base = tuned.baseline.effective_batch_size or 32
    if (free.effective_batch_size or base) <= base:
        free = free.replace(batch_size=growth * base, gradient_accumulation_steps=1)
    for rule in RULES:
        for way in WAYS:
            config = _planned(tuned, rule, warmup=way == "warm-up", settings=free)
            if way in ("onecycle", "cosine"):
                config = config.with_schedule(epochs, kind=way)  # type: ignore[arg-type]
            yield f"free batch of {free.effective_batch_size}, {rule or 'no rule'}, {way}", config


def _planned(config: TunedConfig, rule: LrScaling | None, *, warmup: bool, settings: Any) -> TunedConfig:
    facts, effective = config.facts, settings.effective_batch_size
    plan: LearningRatePlan = scale(
        base_batch_size=config.baseline.effective_batch_size,
        effective_batch_size=effective,
        rule=rule,
        optimizer_name=facts.optimizer_name,
        steps_per_epoch=-(-facts.samples // effective) if facts.samples else None,
    )
    plan = plan if warmup else dataclasses.replace(plan, warmup_steps=0)
    return dataclasses.replace(config, settings=settings, learning_rate=plan, same_batch=None)


def train(job: Workload, config: TunedConfig, *, seed: int, epochs: int, variant: str) -> Run:
    """One training, judged when it is over."""
    torch.manual_seed(seed)
    model = config.prepare(job.model())
    optimizer = config.optimizer(model)
    scheduler = None if config.schedule is None else config.scheduler(optimizer)
    step, loader = config.train_step(model, optimizer, scheduler), config.dataloader()
    every = max(1, len(loader) // PARTS)
    kept: list[tuple[float, Mapping[str, Tensor]]] = []
    spent_s, began = 0.0, time.perf_counter()
    for _ in range(epochs):
        for index, batch in enumerate(loader, start=1):
            loss = step(batch)
            if index % every == 0 or index == len(loader):
                if index == len(loader):
                    step.flush()
                finite = bool(torch.isfinite(loss))  # waits for the device
                spent_s += time.perf_counter() - began
                kept.append((spent_s, copy.deepcopy(model.state_dict())))
                began = time.perf_counter()
    accuracies = tuple(accuracy(job, weights) for _, weights in kept)
    seconds = tuple(until for until, _ in kept)
    return Run(variant=variant, seed=seed, accuracies=accuracies, seconds=seconds, diverged=not finite)


@torch.no_grad()
def accuracy(job: Workload, weights: Mapping[str, Tensor]) -> float:
    """Share of the held-out data that is classified right."""
    assert job.held_out is not None
    device = next(iter(weights.values())).device
    model = job.model().to(device).eval()
    model.load_state_dict(weights)
    right = seen = 0
    for inputs, targets in DataLoader(job.held_out(), batch_size=256, collate_fn=job.collate_fn):
        right += int((model(inputs.to(device)).argmax(1).cpu() == targets).sum())
        seen += len(targets)
    return right / seen


def time_to(run: Run, wanted: float) -> float | None:
    """Seconds of training until the accuracy was reached, linear between two judgements; None: never."""
    before_s, before = 0.0, 0.0
    for now, now_s in zip(run.accuracies, run.seconds, strict=True):
        if now >= wanted:
            share = (wanted - before) / (now - before) if now > before else 1.0
            return before_s + share * (now_s - before_s)
        before_s, before = now_s, now
    return None


def described(runs: list[Run]) -> Iterator[str]:
    """A row of a table for each variant: accuracies at the end, and times as shares of the default's whole time."""
    defaults = {run.seed: run for run in runs if run.variant == "default"}
    yield "| variant | accuracy at the end, % (median, lowest to highest) | time to the default's / its whole |"
    yield "|---|---|---|"
    for variant in dict.fromkeys(run.variant for run in runs):
        mine = [run for run in runs if run.variant == variant]
        last = [100 * run.accuracies[-1] for run in mine]
        shares = []
        for run in mine:
            default = defaults[run.seed]
            reached_s = time_to(run, default.accuracies[-1])
            shares.append("never" if reached_s is None else f"{reached_s / default.seconds[-1]:.2f}")
        lost = " diverged" if any(run.diverged for run in mine) else ""
        spread = f"{statistics.median(last):.1f} ({min(last):.1f} to {max(last):.1f})"
        yield f"| {variant} | {spread}{lost} | {', '.join(shares)} |"


def tuned_config(task: Task, budget_s: float, say: Callable[[str], object] = print) -> TunedConfig:
    """The tuner's answer."""
    config = tune(task, time_budget_s=budget_s, lr_scaling="linear", progress=False)
    say(str(config))
    return config


def main() -> None:
    """Tunes once, trains all variants with each seed, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("fashion", "text"), nargs="?", default="fashion")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of tuning")
    parser.add_argument("--growth", type=int, default=8, help="of the batch, where the tuner chose no larger one")
    parser.add_argument("--size", type=int, help="samples to train on, at most")
    parser.add_argument("--tiny", action="store_true", help="512 samples, one seed, two epochs: does it run?")
    parser.add_argument("--out", type=Path, help="JSON of every run")
    arguments = parser.parse_args()
    if arguments.tiny:
        vars(arguments).update(TINY)
    job = job_of(arguments.job, arguments.size)
    tuned = tuned_config(job.task(), arguments.budget)
    runs = []
    for seed in range(arguments.seeds):
        for variant, config in variants(tuned, arguments.epochs, arguments.growth):
            runs.append(train(job, config, seed=seed, epochs=arguments.epochs, variant=variant))
            print(f"seed {seed}, {variant}: {100 * runs[-1].accuracies[-1]:.1f} %", file=sys.stderr, flush=True)
    print("\n".join(described(runs)))
    if arguments.out is not None:
        document = {"job": arguments.job, "config": tuned.to_json(), "runs": [asdict(run) for run in runs]}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
