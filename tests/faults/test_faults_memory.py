"""Memory that ran out is told apart from other failures, and given back."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from autotune.measurement import Measured, OutOfMemory
from tests.faults.small_task import Net, bench, full_above, largest, probe, rows


def test_what_a_failed_step_held_is_gone_before_the_next_size_runs() -> None:
    """When the model is called again, no tensor of the failing pass lives.

    Reports: pytorch/pytorch#27600, pytorch/pytorch#18853.
    """
    failing: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def refuse(_: Any, x: torch.Tensor) -> None:
        alive.extend(ref() is not None for ref in failing)
        if len(x) > 37:
            big = x * 2
            failing.append(weakref.ref(big))
            raise torch.OutOfMemoryError("CUDA out of memory.")

    assert largest(Net(refuse)).batch_size == 37
    assert len(failing) >= 2
    assert alive
    assert not any(alive)


def test_twenty_trials_leave_no_tensors() -> None:
    """Trials that fit and trials that fail, ten times each: the number of live tensors stays.

    Report: pykeen/pykeen#151.
    """
    with contextlib.closing(bench(Net(full_above(32)))) as one:
        one.run(probe("compute", batch_size=16))
        one.run(probe("compute", batch_size=64))
        before = _live_tensors()
        for _ in range(10):
            assert isinstance(one.run(probe("compute", batch_size=16, window_s=0.0)), Measured)
            assert isinstance(one.run(probe("compute", batch_size=64, window_s=0.0)), OutOfMemory)
        assert _live_tensors() <= before + 5


def _live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def test_one_size_that_fails_is_not_the_one_returned() -> None:
    """Exactly 32 rows fail, 16, 48 and 64 work: the search ends above, and not at 32.

    Report: mlcommons/algorithmic-efficiency#185.
    """

    def refuse(_: Any, x: torch.Tensor) -> None:
        if len(x) == 32:
            raise RuntimeError("no kernel image for this size")

    assert largest(Net(refuse), max_batch_size=64).batch_size == 64


def _on_device() -> torch.device:
    found = torch.accelerator.current_accelerator()
    assert found is not None
    return found


class Wide(nn.Module):
    """Keeps 8 MiB a row for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.sigmoid(self.layer(x).repeat(1, 2**19)))[:, :2]


@pytest.mark.gpu
def test_the_device_is_as_empty_after_the_search_as_before() -> None:
    """Sizes ran out of the device's memory in this very process: what is allocated afterwards is what was.

    Report: pytorch/pytorch#26188.
    """
    device = _on_device()
    torch.accelerator.synchronize()
    before = torch.accelerator.memory_allocated()
    result = largest(Wide(), rows(100_000), device=str(device), max_batch_size=65_536)
    gc.collect()
    assert result.batch_size > 1
    assert abs(torch.accelerator.memory_allocated() - before) <= 2**20


@pytest.mark.gpu
def test_three_epochs_pass_at_the_size_returned() -> None:
    """Blocks split up by earlier steps leave room for later ones.

    Report: pytorch/pytorch#35901.
    """
    device = _on_device()
    size = largest(Wide(), rows(100_000), device=str(device), memory_margin=0.05).batch_size
    model = Wide().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(rows(2 * size + 1), batch_size=size)
    for _ in range(3):
        for x, y in loader:
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert next(model.parameters()).isfinite().all()
