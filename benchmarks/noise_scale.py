"""The measured noise scale beside its closed form, on a quadratic: ratio, and whether the interval holds.

    python benchmarks/noise_scale.py [--runs 20] [--json]

The loss of a sample x is |w - x|^2 / 2, its gradient w - x: so |G|^2 is the squared distance of the weights from the
place around which the samples are drawn, tr(S) their variance summed over dimensions, and the simple noise scale their
ratio. Both are taken from the very samples, |G|^2 less tr(S) / N for what N samples miss of that place: batches drawn
without replacement estimate that one. Each run measures through the same probe as ``tuned.noise_scale()``, in this
process, on another order of the samples, at five distances and with three batch sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from autotune import Settings, Task
from autotune.config.measuring import noise_probe, noise_scale_of
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured
from autotune.trial import Bench

SAMPLES, DIMENSIONS = 16_384, 64
NOISE_SCALES = (10.0, 30.0, 100.0, 300.0, 1000.0)
BATCHES = (8, 32, 128)


class Point(nn.Module):
    """The weights of the quadratic."""

    def __init__(self, at: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(at.clone())

    def forward(self, samples: Tensor) -> Tensor:
        """Mean loss."""
        return ((self.weights - samples) ** 2).sum(1).mean() / 2


def mean_loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """The training step."""
    loss: Tensor = model(batch[0])
    return loss


def quadratic(wanted: float) -> tuple[Task, float]:
    """A quadratic with about the noise scale that is wanted, and the one it has."""
    samples = torch.randn(SAMPLES, DIMENSIONS, generator=torch.Generator().manual_seed(1))
    mean, trace = samples.mean(0), float(samples.var(0, unbiased=False).sum())
    at = mean + ((trace / wanted + trace / SAMPLES) / DIMENSIONS) ** 0.5
    exact = trace / (float(((at - mean) ** 2).sum()) - trace / SAMPLES)
    return Task(lambda: Point(at), TensorDataset(samples), training_step=mean_loss, device="cpu"), exact


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measurement."""

    exact: float
    batch: int
    ratio: float | None
    """Measured over exact; None: above what could be told."""
    held: bool
    """The exact value lies in the 95 % interval."""


def ratios(runs: int, noise_scales: tuple[float, ...] = NOISE_SCALES) -> Iterator[Ratio]:
    """One measurement for each run, noise scale and batch."""
    hardware = Hardware.detect(device="cpu")
    for wanted in noise_scales:
        task, exact = quadratic(wanted)
        bench = Bench(task, hardware, Limits.of(hardware))
        facts = bench.describe()
        for batch in BATCHES:
            for _ in range(runs):  # each goes on where the last one stopped reading
                measured = bench.run(noise_probe(Settings(batch_size=batch), facts, window_s=30.0))
                assert isinstance(measured, Measured), measured
                found = noise_scale_of(measured)
                low, high = found.low or 0.0, found.high or float("inf")
                ratio = None if found.b_simple is None else found.b_simple / exact
                yield Ratio(exact, batch, ratio, low <= exact <= high)
        bench.close()


def main() -> None:
    """Prints the ratios by noise scale and batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="one JSON document")
    arguments = parser.parse_args()
    found = list(ratios(arguments.runs))
    if arguments.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for exact, batch in dict.fromkeys((one.exact, one.batch) for one in found):
        cell = [one for one in found if (one.exact, one.batch) == (exact, batch)]
        known = [one.ratio for one in cell if one.ratio is not None]
        spread = f"median {statistics.median(known):.2f}, {min(known):.2f} to {max(known):.2f}" if known else "-"
        near = sum(0.75 <= ratio <= 1.25 for ratio in known)
        print(
            f"closed form {exact:6.0f}, batches {batch:3} and {8 * batch:4}: measured / closed form {spread}; {near} "
            f"of {len(cell)} within 25 %; in the interval {sum(one.held for one in cell)}"
        )


if __name__ == "__main__":
    main()
