"""The largest batch of one job under a memory cap: what `largest_batch()` and others find, beside the true edge.

    python benchmarks/largest_batch.py --out largest.json
    python benchmarks/largest_batch.py --job transformer --runs 3

torchvision's mobilenet_v3_small on 64 px images (with --job: a 4-layer transformer on 64 tokens, a small U-Net on
32 px), Adam, on the CPU, every method in a process of its own under RLIMIT_AS = address space after the model and one
batch of one + 2.5 GiB. The true edge is the largest size that passes five steps in three of three fresh processes (a
plain training loop), to 16 rows. Linux only.

Lightning's and accelerate's finders are run where they are installed, else left out and said. To have them without
touching your environment, make one on top of it and name its interpreter:

    python -m venv rivals
    python -c "import site; print(site.getsitepackages()[0])" > rivals/lib/python3.*/site-packages/host.pth
    rivals/bin/python -m pip install lightning accelerate
    python benchmarks/largest_batch.py --rivals rivals/bin/python

OMP_NUM_THREADS=1 makes it much faster on a machine that others use.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

ROOM_BYTES = int(2.5 * 2**30)
EDGE_STEPS, EDGE_RUNS, EDGE_ROWS = 5, 3, 16
RIVAL_STEPS = 3  # Lightning's default
START = 4096  # where accelerate begins
METHODS = {
    "autotune": ("torch", "largest_batch(memory_margin=0)"),
    "power": ("lightning", "Lightning scale_batch_size, power"),
    "binsearch": ("lightning", "Lightning scale_batch_size, binsearch"),
    "accelerate": ("accelerate", f"accelerate find_executable_batch_size, from {START}"),
}
capped = False


class Repeated(Dataset[tuple[Tensor, int]]):
    """64 random samples, seen as 20,000."""

    def __init__(self, *shape: int) -> None:
        self.samples = torch.rand(64, *shape, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.samples[index % 64], index % 10


class Transformer(nn.Module):
    """Four encoder layers over 64 tokens of width 64; the class of their mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(1))


class UNet(nn.Module):
    """Two levels down and up again; activations of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 64, 3, stride=2, padding=1)
        self.up, self.head = nn.ConvTranspose2d(64, 16, 2, stride=2), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        fine = torch.relu(self.down(images))
        coarse = torch.relu(self.up(torch.relu(self.bottom(fine))))
        return self.head(torch.cat([fine, coarse], 1).mean((2, 3)))


def mobilenet() -> nn.Module:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=10)


JOBS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mobilenet": (mobilenet, (3, 64, 64)),
    "transformer": (Transformer, (64, 64)),
    "unet": (UNet, (3, 32, 32)),
}
job = "mobilenet"


def data() -> Repeated:
    return Repeated(*JOBS[job][1])


def network() -> nn.Module:
    """The network; the first one a process makes trains on one sample, and then the process is capped."""
    global capped
    make, shape = JOBS[job]
    model = make()
    if not capped:
        capped = True
        model(torch.rand(1, *shape)).sum().backward()
        model.zero_grad(set_to_none=True)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    return model


def named_network(name: str) -> nn.Module:
    """``network()`` where this file is imported anew."""
    global job
    job = name
    return network()


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-3)


def train(model: nn.Module, rows: int, steps: int) -> None:
    """A plain training loop."""
    optimizer = adam(model.parameters())
    batches = iter(DataLoader(data(), batch_size=rows))
    for _ in range(steps):
        samples, labels = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()


def autotune() -> dict[str, Any]:
    from autotune import largest_batch

    loss = nn.functional.cross_entropy
    began = time.perf_counter()
    found = largest_batch(
        partial(named_network, job), data(), loss_fn=loss, optimizer=adam, memory_margin=0.0, time_budget_s=1800
    )
    seconds = time.perf_counter() - began
    tried = [[one.size, one.fate, one.peak_bytes, one.limit_bytes] for one in found.evidence]
    counts = {"probes": found.probes, "out_of_memory": found.out_of_memory_probes}
    return {"batch_size": found.batch_size, **counts, "seconds": seconds, "reason": found.reason, "tried": tried}


def lightning(mode: str) -> dict[str, Any]:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = network(), 2

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self.parameters())

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(data(), batch_size=self.batch_size)

    return scaled(Module(), mode=mode, accelerator="cpu")


def scaled(module: Any, *, mode: str, accelerator: str, **options: Any) -> dict[str, Any]:
    """What Lightning's batch size scaling finds for ``module``, with every size it ran."""
    import lightning.pytorch as pl
    from lightning.pytorch.tuner import Tuner, batch_size_scaling

    tried: list[list[Any]] = []
    one_trial = batch_size_scaling._try_loop_run

    def counted(trainer: Any, *arguments: Any) -> None:
        tried.append([module.batch_size, "out of memory"])
        one_trial(trainer, *arguments)
        tried[-1][1] = "measured"

    batch_size_scaling._try_loop_run = counted
    quiet: dict[str, Any] = {
        "default_root_dir": tempfile.mkdtemp(),
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
    }
    trainer = pl.Trainer(accelerator=accelerator, max_epochs=1, enable_model_summary=False, **quiet)
    find = partial(Tuner(trainer).scale_batch_size, module, mode=mode, steps_per_trial=RIVAL_STEPS, **options)
    return counts(find, tried)


def accelerate() -> dict[str, Any]:
    from accelerate.utils import find_executable_batch_size

    tried: list[list[Any]] = []
    model = network()

    @find_executable_batch_size(starting_batch_size=START)
    def trial(batch_size: int) -> int:
        tried.append([batch_size, "out of memory"])
        train(model, batch_size, RIVAL_STEPS)
        tried[-1][1] = "measured"
        return batch_size

    return counts(trial, tried)


def counts(find: Callable[[], int | None], tried: list[list[Any]]) -> dict[str, Any]:
    """What ``find`` returns, or how it ended, with its trials and the seconds it took."""
    found: dict[str, Any] = {"batch_size": None}
    began = time.perf_counter()
    try:
        found["batch_size"] = find()
    except Exception as error:
        found["crash"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    found["seconds"] = time.perf_counter() - began
    failed = sum(fate != "measured" for _, fate in tried)
    return {**found, "probes": len(tried), "out_of_memory": failed, "tried": tried}


def child(method: str, rows: int) -> None:
    """What runs in a process of its own; the last line of stdout is its result."""
    if method == "plain":
        train(network(), rows, EDGE_STEPS)
        print(json.dumps({"passed": True}))
        return
    finders = {"autotune": autotune, "accelerate": accelerate}
    found = finders[method]() if method in finders else lightning(method)
    print("\n" + json.dumps({**found, "version": version(METHODS[method][0])}))


def ask(python: str, method: str, rows: int = 0) -> dict[str, Any] | None:
    """The result of one child; None where it died."""
    command = [python, __file__, "--method", method, "--rows", str(rows), "--job", job]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    if method != "plain":
        print(done.stderr[-2000:], file=sys.stderr)
    return None


def passes(rows: int) -> bool:
    """Whether a size passes in all of the fresh processes."""
    passed = all(ask(sys.executable, "plain", rows) for _ in range(EDGE_RUNS))
    print(f"true edge: {rows} {'passes' if passed else 'fails'}", flush=True)
    return passed


def true_edge(guess: int) -> tuple[int, int]:
    """The largest size that passes, and the smallest above it that was seen to fail."""
    low, high = guess, None
    while not passes(low):
        low, high = int(low * 0.9), low
    while high is None:
        larger = int(low * 1.1)
        low, high = (larger, None) if passes(larger) else (low, larger)
    while high - low > EDGE_ROWS:
        middle = (low + high) // 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low, high


def results(rivals: str, runs: int) -> Iterator[dict[str, Any]]:
    """The results of ``runs`` runs of ours and one of each other, printed as they come."""
    for method in ["autotune"] * (runs - 1) + list(METHODS):
        package, label = METHODS[method]
        python = sys.executable if method == "autotune" else rivals
        found = subprocess.run([python, "-c", f"import {package}"], capture_output=True)
        if found.returncode:
            print(f"{label}: left out, {package} is not installed (see --help)", flush=True)
            yield {"method": method, "left_out": f"{package} is not installed"}
            continue
        began = time.perf_counter()
        result = ask(python, method) or {"batch_size": None, "crash": "the process died"}
        result = {"method": method, **result, "wall_s": time.perf_counter() - began}
        print(f"{label}: {json.dumps(result)}", flush=True)
        yield result


def main() -> None:
    """Runs all methods, then looks for the true edge, and prints how close each came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", default=sys.executable, help="interpreter that has lightning and accelerate")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--job", choices=list(JOBS), default="mobilenet")
    parser.add_argument("--runs", type=int, default=1, help="of largest_batch()")
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    global job
    job = arguments.job
    if arguments.method:
        child(arguments.method, arguments.rows)
        return
    found = list(results(arguments.rivals, arguments.runs))
    edge, fails = true_edge(found[0]["batch_size"] or 1024)
    for result in found:
        size = result.get("batch_size")
        result["share_of_edge"] = size / edge if size else None
        print(f"{METHODS[result['method']][1]}: {summary(result)}")
    print(cost_beside_binsearch(found))
    document = {"job": job, "true_edge": edge, "fails": fails, "torch": torch.__version__, "results": found}
    print(f"true edge: {edge} ({fails} fails)")
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1) + "\n")


def summary(result: dict[str, Any]) -> str:
    """One line on one method."""
    if "left_out" in result:
        return f"left out: {result['left_out']}"
    if result["batch_size"] is None:
        return f"no result after {result.get('probes', '?')} probes ({result.get('crash')})"
    share = f"{100 * result['share_of_edge']:.0f} % of the edge"
    cost = f"{result['probes']} probes, {result['out_of_memory']} out of memory, {result['seconds']:.0f} s"
    return f"{result['batch_size']}, {share}, {cost}"


def cost_beside_binsearch(results: list[dict[str, Any]]) -> str:
    """Probes and seconds of ours over those of Lightning's binsearch, which had the same memory; best and worst run."""
    ran = [result for result in results if "probes" in result]
    theirs = next((result for result in ran if result["method"] == "binsearch"), None)
    ours = [result for result in ran if result["method"] == "autotune"]
    if theirs is None or not ours:
        return "largest_batch() / Lightning binsearch: not both were run"
    shares = {unit: [result[unit] / theirs[unit] for result in ours] for unit in ("probes", "seconds")}
    text = ", ".join(f"{unit} {min(share):.2f} to {max(share):.2f}" for unit, share in shares.items())
    return f"largest_batch() / Lightning binsearch, imports left out: {text} ({len(ours)} runs)"


if __name__ == "__main__":
    main()
