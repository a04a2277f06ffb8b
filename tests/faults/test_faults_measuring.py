"""Reports of rates that were measured wrongly; clocks here pass only where the test says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench
from autotune.trial.timer import WindowTimer


class Clock:
    """Passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(nn.Module):
    """Each training step takes ``step_s`` on ``clock``."""

    def __init__(self, clock: Clock, step_s: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.clock, self.step_s = clock, step_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.step_s
        return self.layer(x)


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Makes benches on the CPU and closes them."""
    made: list[Bench] = []
    hardware = Hardware.detect()

    def make(model: nn.Module, clock: Callable[[], float] = time.perf_counter, **more: Any) -> Bench:
        data = TensorDataset(torch.randn(4096, 4), torch.zeros(4096, dtype=torch.long))
        task = Task(model, data, **{"loss_fn": nn.CrossEntropyLoss(), "device": "cpu", **more})
        made.append(Bench(task, hardware, Limits.of(hardware), clock=clock))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ["joint", "compute", "lap"])
@pytest.mark.parametrize(("rows", "accumulation"), [(16, 1), (8, 4)])
def test_the_rate_is_samples_over_seconds(kind: Any, rows: int, accumulation: int, bench: Callable[..., Bench]) -> None:
    """The formula is the right way up, whatever the batch (ludwig-ai/ludwig PR #2843)."""
    clock = Clock()
    settings = Settings(batch_size=rows, gradient_accumulation_steps=accumulation)
    outcome = bench(Timed(clock, 0.01), clock).run(Probe(kind=kind, settings=settings, window_s=0.5))
    assert isinstance(outcome, Measured)
    assert outcome.samples_per_s == pytest.approx(rows / 0.01)


def test_a_window_waits_for_the_device_twice_however_many_steps_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting after each step would inflate short ones (flashinfer-ai/flashinfer-bench#195)."""
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    clock = Clock()
    timer = WindowTimer(torch.device("mps"), clock)
    timer.start()
    for _ in range(100):
        clock.now += 0.01
        timer.mark()
    assert timer.spans_s() == pytest.approx([1.0])
    assert len(waits) == 2


@pytest.mark.gpu
def test_a_step_is_as_long_as_a_clock_around_a_synchronised_one_says() -> None:
    """Queued work counts where it is done (TristanBilot/mlx-benchmark PR #21)."""
    device = torch.accelerator.current_accelerator()
    assert device is not None
    model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8)))
    data = TensorDataset(torch.randn(4096, 4096), torch.zeros(4096, dtype=torch.long))
    hardware = Hardware.detect()
    task = Task(model, data, loss_fn=nn.CrossEntropyLoss(), device=str(device))
    one = Bench(task, hardware, Limits.of(hardware))
    outcome = one.run(Probe(kind="compute", settings=Settings(batch_size=2048), window_s=1.0))
    one.close()
    assert isinstance(outcome, Measured)
    model.to(device)
    batch, target = torch.randn(2048, 4096, device=device), torch.zeros(2048, dtype=torch.long, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(15):
        if step == 5:
            torch.accelerator.synchronize()
            began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(batch), target).backward()
        optimizer.step()
    torch.accelerator.synchronize()
    expected = 2048 * 10 / (time.perf_counter() - began)
    assert outcome.samples_per_s == pytest.approx(expected, rel=0.2)
