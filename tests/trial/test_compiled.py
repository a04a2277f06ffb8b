"""What torch.compile does in silence is said aloud in trials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, Probe, Rejected
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench
from autotune.trial.compiled import strict_recompiles


class Relabelled(nn.Module):
    """A new text attribute at every step: each is a graph of its own."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.labels, self.steps, self.label = labels, 0, "0"

    def relabel(self) -> None:
        self.steps += 1
        self.label = str(self.steps % self.labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (2 if self.label == "1" else 1)


def _stepped(model: Relabelled, x: torch.Tensor) -> torch.Tensor:
    model.relabel()
    return model(x).square().mean()


@pytest.fixture
def few_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compilation without a code generator, two graphs at most."""
    monkeypatch.setattr(nn.Module, "compile", _without_code)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=2):
        yield
    torch._dynamo.reset()


def _without_code(module: nn.Module, mode: str | None = None) -> None:
    module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")  # type: ignore[assignment]


def _training_step(model: Relabelled, batch: list[torch.Tensor]) -> torch.Tensor:
    return _stepped(model, batch[0])


def _run(labels: int, settings: Settings) -> Outcome:
    task = Task(Relabelled(labels), TensorDataset(torch.randn(256, 8)), training_step=_training_step, device="cpu")
    hardware = Hardware.detect()
    bench = Bench(task, hardware, Limits.of(hardware))
    try:
        return bench.run(Probe(kind="joint", settings=settings, window_s=0.05, deadline_s=60.0))
    finally:
        bench.close()


def test_a_setting_that_runs_out_of_graphs_is_rejected(few_graphs: None) -> None:
    """Dynamo's own way out is to run the rest eagerly, and what was measured would be neither."""
    outcome = _run(5, Settings(batch_size=8, compile_mode="default"))
    assert isinstance(outcome, Rejected)
    assert outcome.phase == "compile"
    assert "more than 2 graphs" in outcome.reason


def test_as_many_graphs_as_allowed_are_no_failure(few_graphs: None) -> None:
    """Two labels, two graphs: measured as it is."""
    assert isinstance(_run(2, Settings(batch_size=8, compile_mode="default")), Measured)


def test_eager_settings_leave_the_limit_as_it_was() -> None:
    """The caller's own compiled functions keep dynamo's behaviour."""
    before = torch._dynamo.config.fail_on_recompile_limit_hit
    with strict_recompiles(Settings()):
        assert torch._dynamo.config.fail_on_recompile_limit_hit is before
    with strict_recompiles(Settings(compile_mode="default")):
        assert torch._dynamo.config.fail_on_recompile_limit_hit is True
    assert torch._dynamo.config.fail_on_recompile_limit_hit is before
