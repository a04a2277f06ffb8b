"""What the tuner finds on your accelerator, in one JSON file.

    python benchmarks/gpu/check.py --out result.json

Tunes three tasks for 60 s each: torchvision's resnet50 at 224 px on images in memory and on images that the CPU has to
unpack and crop, and a 12-layer transformer of torch.nn. Each runs in a process of its own, so that one that dies loses
nothing of the others. The file holds the hardware, the versions, each task's whole config with the race's figures, the
memory before and after tuning, and the rate and peak memory of 30 steps really trained with the config.

`--tiny` takes small networks and 10 s each, and runs on a CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from autotune import TunedConfig, autotune
from autotune.hardware import Hardware

SCHEMA_VERSION = 1
STEPS = 30
# Steps before the timed ones: compilation, the allocator's growth, and at most this many to drain the loader's stock.
MOST_WARMUP_STEPS = 60
CLASSES = 100


class Repeated(Dataset[tuple[Tensor, Tensor]]):
    """A few tensors, seen as a long data set: memory stays small, epochs long."""

    def __init__(self, inputs: Tensor, targets: Tensor, length: int) -> None:
        self.inputs, self.targets, self.length = inputs, targets, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = index % len(self.inputs)
        return self.inputs[row], self.targets[row]


class Packed(Dataset[tuple[Tensor, Tensor]]):
    """Compressed images that the CPU unpacks, crops, flips and normalises, as a decoder of JPEG files would."""

    def __init__(self, size: int, crop: int, length: int) -> None:
        self.size, self.crop, self.length = size, crop, length
        ramp = torch.linspace(0, 200, size).expand(3, size, size)
        noise = torch.randint(0, 8, (32, 3, size, size), generator=torch.Generator().manual_seed(0))
        self.packed = [zlib.compress((ramp + image).to(torch.uint8).numpy().tobytes(), 6) for image in noise]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        raw = bytearray(zlib.decompress(self.packed[index % len(self.packed)]))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(3, self.size, self.size)
        top, left = torch.randint(0, self.size - self.crop + 1, (2,)).tolist()
        image = image[:, top : top + self.crop, left : left + self.crop].float().div(255.0)
        image = image.flip(-1) if index % 2 else image
        return (image - 0.45) / 0.225, torch.tensor(index % CLASSES)


class Transformer(nn.Module):
    """A causal language model: embedding, ``layers`` pre-norm encoder layers, projection to the vocabulary."""

    def __init__(self, *, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.encoder(self.tokens(tokens) + self.positions, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def language_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all positions; logits (batch, length, vocabulary), targets (batch, length)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def resnet(tiny: bool) -> nn.Module:
    from torchvision import models

    small = partial(models.ResNet, models.resnet.BasicBlock, [1, 1, 1, 1])
    model: nn.Module = (small if tiny else models.resnet50)(num_classes=CLASSES)
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One task to tune."""

    model: Callable[[], nn.Module]
    dataset: Dataset[tuple[Tensor, Tensor]]
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]


def images_in_memory(tiny: bool) -> Workload:
    generator = torch.Generator().manual_seed(0)
    pixels, distinct = (16, 64) if tiny else (224, 256)
    images = torch.randn(distinct, 3, pixels, pixels, generator=generator)
    labels = torch.randint(0, CLASSES, (distinct,), generator=generator)
    return image_workload(Repeated(images, labels, 2_000 if tiny else 50_000), tiny)


def images_unpacked(tiny: bool) -> Workload:
    return image_workload(Packed(24, 16, 2_000) if tiny else Packed(256, 224, 50_000), tiny)


def image_workload(dataset: Dataset[tuple[Tensor, Tensor]], tiny: bool) -> Workload:
    return Workload(
        model=partial(resnet, tiny),
        dataset=dataset,
        loss_fn=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    )


def transformer(tiny: bool) -> Workload:
    size = {"vocabulary": 64, "width": 32, "heads": 2, "layers": 2, "length": 16}
    if not tiny:
        size = {"vocabulary": 8192, "width": 768, "heads": 12, "layers": 12, "length": 256}
    shape = (512, size["length"] + 1)
    text = torch.randint(0, size["vocabulary"], shape, generator=torch.Generator().manual_seed(0))
    return Workload(
        model=partial(Transformer, **size),
        dataset=Repeated(text[:, :-1].contiguous(), text[:, 1:].contiguous(), 4_000 if tiny else 50_000),
        loss_fn=language_loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-4),
    )


WORKLOADS: dict[str, Callable[[bool], Workload]] = {
    "resnet50-in-memory": images_in_memory,
    "resnet50-unpacked": images_unpacked,
    "transformer-12": transformer,
}


def check(name: str, *, tiny: bool, budget_s: float) -> dict[str, Any]:
    """Tune one workload, train with the result, and return all that was seen."""
    workload = WORKLOADS[name](tiny)
    had_context = torch.cuda.is_initialized()
    before = free_memory()
    began = time.perf_counter()
    tuned = autotune(
        workload.model,
        workload.dataset,
        loss_fn=workload.loss_fn,
        optimizer=workload.optimizer,
        time_budget_s=budget_s,
        cache=False,
        progress=False,
    )
    tuning = {"wall_s": time.perf_counter() - began, "budget_s": budget_s}
    memory = {"free_before": before, "free_after": free_memory()}
    tuning["cuda_initialised_by_tuning"] = torch.cuda.is_initialized() and not had_context
    race = {
        "speedup": tuned.to_json()["evidence"]["speedup"],
        "speedup_same_batch": tuned.to_json()["evidence"]["speedup_same_batch"],
        "kept_baseline": tuned.evidence.kept_baseline,
        "reason": tuned.evidence.reason,
        "changed": {knob: list(pair) for knob, pair in tuned.baseline.differences(tuned.settings).items()},
    }
    training = train(tuned, workload)
    return {"tuning": tuning, "race": race, "memory": memory, "training": training, "config": tuned.to_json()}


def free_memory() -> dict[str, int | None]:
    """Free memory as seen from outside any process, in bytes."""
    seen = Hardware.detect()
    accelerator = seen.accelerator.free_bytes if seen.accelerator else None
    return {"accelerator_bytes": accelerator, "ram_bytes": seen.ram_available_bytes}


def train(tuned: TunedConfig, workload: Workload) -> dict[str, Any]:
    """The rate, losses and peak memory of ``STEPS`` steps with the emitted loader, optimizer and train step."""
    torch.manual_seed(0)
    model = tuned.prepare(workload.model())
    optimizer = tuned.optimizer(model)
    step = tuned.train_step(model, optimizer, loss_fn=workload.loss_fn)
    batches = endless(tuned.dataloader())
    settings = tuned.settings
    stock = settings.num_workers * (settings.prefetch_factor or 0)
    warm_up = [step(next(batches)) for _ in range(min(MOST_WARMUP_STEPS, 3 + stock))]
    synchronize()
    began, rows = time.perf_counter(), 0
    for batch in islice(batches, STEPS):
        loss = step(batch)
        rows += len(batch[0])
    synchronize()
    samples_per_s = rows / (time.perf_counter() - began)
    promised = tuned.evidence.samples_per_s
    return {
        "steps": STEPS,
        "samples_per_s": samples_per_s,
        "promised_samples_per_s": promised,
        "of_promised": samples_per_s / promised if promised else None,
        "first_loss": finite(warm_up[0].item()),
        "last_loss": finite(loss.item()),
        "peak_bytes": peak_memory(),
    }


def finite(value: float) -> float | None:
    """``value``, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def peak_memory() -> dict[str, int | None]:
    """Highest memory of this process so far: what the accelerator's allocator handed out, and resident RAM; bytes."""
    try:
        import resource
    except ImportError:  # Windows
        ram = None
    else:
        ram = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    on_device = torch.accelerator.max_memory_allocated() if torch.accelerator.is_available() else None
    return {"accelerator_bytes": on_device, "ram_bytes": ram}


def versions() -> dict[str, str | None]:
    """Installed versions; null for what is not installed."""

    def found(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: found(name) for name in ("torch-autotune", "torch", "torchvision", "optuna", "triton", "numpy")}


def check_apart(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """``check`` in a process of its own; what went wrong there is part of the result."""
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "part.json"
        command = [sys.executable, __file__, "--only", name, "--out", str(part), "--budget", str(arguments.budget)]
        command += ["--tiny"] if arguments.tiny else []
        # Training after the tuning may compile anew and fill a slow loader: generous, but never for ever.
        limit_s = 1.5 * arguments.budget + 900.0
        try:
            ended = subprocess.run(command, check=False, timeout=limit_s, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return {"error": f"no result after {limit_s:.0f} s"}
        if part.exists():
            result: dict[str, Any] = json.loads(part.read_text())["workloads"][name]
            return result
        return {"error": f"the process ended with {ended.returncode}: {ended.stderr[-4000:]}"}


def check_here(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        return check(name, tiny=arguments.tiny, budget_s=arguments.budget)
    except Exception:  # whatever it is belongs into the file
        return {"error": traceback.format_exc()}


def summary(name: str, result: dict[str, Any]) -> str:
    """A few lines for people."""
    if "error" in result:
        return f"{name}: FAILED\n  {result['error'].strip().splitlines()[-1]}"
    race, training, speedup = result["race"], result["training"], result["race"]["speedup"]
    ratio = f"{speedup['median']:.2f}x, at least {speedup['low']:.2f}x" if speedup else "no proven gain"
    changed = ", ".join(f"{knob} {old} -> {new}" for knob, (old, new) in race["changed"].items()) or "nothing"
    kept = training["of_promised"]
    promised = f"{kept:.0%} of what was promised" if kept else "nothing was promised"
    return (
        f"{name}: {ratio} in {result['tuning']['wall_s']:.0f} s\n"
        f"  changed: {changed}\n"
        f"  {race['reason']}\n"
        f"  trained {STEPS} steps at {training['samples_per_s']:.1f} samples/s ({promised})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Tune three tasks on this machine; one JSON of all that was seen.")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.json"), help="file to write (%(default)s)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="tuning time per task (60; 10 with --tiny)")
    parser.add_argument("--tiny", action="store_true", help="small networks, for a CPU")
    parser.add_argument("--only", choices=WORKLOADS, metavar="NAME", help=f"one of {', '.join(WORKLOADS)}, in place")
    arguments = parser.parse_args()
    if arguments.budget is None:
        arguments.budget = 10.0 if arguments.tiny else 60.0
    results = {}
    for name in [arguments.only] if arguments.only else WORKLOADS:
        results[name] = check_here(name, arguments) if arguments.only else check_apart(name, arguments)
        print(summary(name, results[name]), flush=True)
    document = {
        "schema_version": SCHEMA_VERSION,
        "tiny": arguments.tiny,
        "versions": versions(),
        "hardware": Hardware.detect().to_json(),
        "workloads": results,
    }
    arguments.out.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 1 if any("error" in result for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
