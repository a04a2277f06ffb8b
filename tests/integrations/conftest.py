"""Ready configs in place of the tuner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from autotune.config import Evidence, TunedConfig
from autotune.learning_rate import LearningRatePlan
from autotune.settings import Settings
from autotune.task import Facts, Task, resolve_loss


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Process-wide switches are put back, and toy models get one thread."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark


class Tuner:
    """Stands in for the tuner: notes what it was asked, and answers with settings.

    Args:
        settings: The answer.
        factor: Of the learning rates.
        warmup_steps: Of the plan.
    """

    def __init__(self, settings: Settings, *, factor: float = 2.0, warmup_steps: int = 0) -> None:
        self.settings, self.factor, self.warmup_steps = settings, factor, warmup_steps
        self.tasks: list[Task] = []
        self.options: list[dict[str, Any]] = []

    def __call__(self, task: Task, **options: Any) -> TunedConfig:
        """The config for a task."""
        self.tasks.append(task)
        self.options.append(options)
        factor, steps = self.factor, self.warmup_steps
        rule = "linear" if factor != 1 else "none"
        return TunedConfig(
            settings=self.settings,
            baseline=Settings(batch_size=4),
            learning_rate=LearningRatePlan(factor=factor, rule=rule, capped=False, warmup_steps=steps, notes=()),
            facts=_facts(task),
            hardware={"fingerprint": "sha256:here"},
            evidence=_evidence(),
            max_grad_norm=task.max_grad_norm,
            task=task,
        )


def _facts(task: Task) -> Facts:
    model, data = task.build_model(), task.data.resolve()
    loader = torch.utils.data.DataLoader(data.dataset, batch_size=4, collate_fn=data.collate_fn)
    batch = next(iter(loader))
    loss = resolve_loss(loss_fn=task.loss_fn, training_step=task.training_step, model=model, batch=batch)
    return Facts.of(task, model, data, batch, loss, "cpu")


def _evidence() -> Evidence:
    return Evidence(
        kept_baseline=False,
        reason="won the race",
        speedup=None,
        speedup_same_batch=None,
        samples_per_s=100.0,
        baseline_samples_per_s=50.0,
        upper_bound_samples_per_s=None,
        largest_batch=None,
        data_wait_share=None,
        dropped_knobs={},
        warnings=(),
        spent_s={},
        trials=1,
        created="2025-01-02T03:04:05+00:00",
    )
