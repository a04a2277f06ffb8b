"""Reports about mixed precision and fused optimizers: an option that does not work is dropped with its reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.build.train_step import TrainStep
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, Probe, Rejected
from autotune.settings import Settings
from autotune.task import StepLoss, Task
from autotune.trial import Bench


def _run(model: nn.Module, **knobs: Any) -> list[Outcome]:
    """The outcome of one trial with ``knobs``, and of a plain one after it."""
    data = TensorDataset(torch.randn(256, 4), torch.zeros(256, dtype=torch.long))
    hardware = Hardware.detect()
    task = Task(model, data, loss_fn=nn.CrossEntropyLoss(), optimizer=_adam, device="cpu")
    bench = Bench(task, hardware, Limits.of(hardware))
    probes = [Probe(kind="joint", settings=Settings(**more), window_s=0.02) for more in (knobs, {})]
    outcomes = [bench.run(probe) for probe in probes]
    bench.close()
    return outcomes


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def test_a_precision_that_fails_at_the_start_is_rejected_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is torch's own (karpathy/nanoGPT PR #277)."""
    enter = torch.autocast.__enter__

    def refuse(self: Any) -> Any:
        if self.fast_dtype == torch.bfloat16:
            raise RuntimeError("Current device does not support bfloat16")
        return enter(self)

    monkeypatch.setattr(torch.autocast, "__enter__", refuse)
    failed, plain = _run(nn.Linear(4, 2), precision="bf16-mixed")
    assert isinstance(failed, Rejected)
    assert "does not support bfloat16" in failed.reason
    assert isinstance(plain, Measured)


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_no_precision_warns_on_a_cpu(precision: Any) -> None:
    """Neither autocast nor a GradScaler says anything (pytorch/pytorch#100565, Emmi-AI/noether PR #21).

    Warnings are errors in this test run.
    """
    outcomes = _run(nn.Linear(4, 2), precision=precision)
    assert all(isinstance(one, Measured) for one in outcomes)


def test_there_is_no_scaler_where_none_is_needed() -> None:
    """fp32 and bf16 train without one (Emmi-AI/noether PR #21)."""
    model = nn.Linear(4, 2)
    for precision in ("fp32", "bf16-mixed"):
        step = TrainStep(
            model,
            _adam(model.parameters()),
            loss=lambda model, batch: StepLoss(loss=model(batch).mean()),
            settings=Settings(precision=precision),  # type: ignore[arg-type]
            device="cpu",
        )
        step(torch.ones(3, 4))
        assert step.state_dict()["scaler"] in (None, {})


class MixedDtypes(nn.Module):
    """One layer in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).double()).float()


@pytest.mark.parametrize("implementation", ["fused", "foreach"])
def test_an_optimizer_step_over_mixed_dtypes_runs_or_is_rejected_with_the_reason(implementation: Any) -> None:
    """Either way the next trial runs (pytorch/pytorch#110758)."""
    tried, plain = _run(MixedDtypes(), optimizer_implementation=implementation)
    assert isinstance(tried, Measured) or (isinstance(tried, Rejected) and tried.reason and tried.traceback)
    assert isinstance(plain, Measured)
