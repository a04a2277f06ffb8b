"""From a verdict to a config."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autotune.config import TunedConfig
from autotune.config.assemble import assemble
from autotune.config.changes import changes
from autotune.learning_rate import LrScaling
from autotune.settings import Settings
from autotune.task import Task


def _hidden_sum(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="sum")


@pytest.mark.parametrize(("loss_fn", "factor"), [(nn.CrossEntropyLoss(), 4.0), (_hidden_sum, 1.0)])
def test_a_sum_is_not_scaled_on_top_of_its_gradient(
    make_config: Callable[..., TunedConfig], task: Task, loss_fn: Any, factor: float
) -> None:
    """A larger batch scales the rate of a mean; a sum, hidden or not, is left alone, and the reader is told."""
    own = Task(task.model, task.data.dataset, loss_fn=loss_fn, optimizer=task.optimizer.factory, device="cpu")
    known = make_config(Settings(batch_size=64), of=own)
    verdict: Any = SimpleNamespace(
        settings=known.settings,
        evidence=known.evidence,
        same_batch_settings=known.baseline,
        same_batch_evidence=known.evidence,
    )
    candidates: Any = SimpleNamespace(baseline=known.baseline, facts=known.facts, base_batch_size=16)
    rule: LrScaling = "linear"
    made = assemble(verdict, candidates, task=own, hardware=known.hardware, lr_scaling=rule)  # type: ignore[arg-type]
    assert made.learning_rate.factor == factor
    assert any("the loss is a sum" in line for line in changes(made)) == (factor == 1)
