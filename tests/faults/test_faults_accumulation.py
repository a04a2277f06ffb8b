"""Reports about step counts and learning rates that no longer fit the batch; gradients: build/test_gradient_truth."""

from __future__ import annotations

import math

import pytest

from autotune.config.changes import updates_per_epoch
from autotune.learning_rate import scale
from autotune.settings import Settings


@pytest.mark.parametrize("samples", [70, 64, 1, 1000])
@pytest.mark.parametrize(("batch", "accumulation"), [(8, 4), (16, 1), (7, 3)])
def test_steps_per_epoch_follow_the_emitted_batch(samples: int, batch: int, accumulation: int) -> None:
    """ceil(N / (batch x accumulation)) (huggingface/transformers#24248)."""
    settings = Settings(batch_size=batch, gradient_accumulation_steps=accumulation)
    assert updates_per_epoch(samples, settings, drop_last=False) == math.ceil(samples / (batch * accumulation))


def test_workers_do_not_touch_the_learning_rate() -> None:
    """Only the effective batch decides (mala-project/mala#422)."""
    one, eight = (Settings(batch_size=32).replace(num_workers=count) for count in (1, 8))
    plans = [
        scale(
            base_batch_size=32,
            effective_batch_size=settings.effective_batch_size,
            rule="linear",
            optimizer_name="torch.optim.SGD",
            steps_per_epoch=10,
        )
        for settings in (one, eight)
    ]
    assert [plan.factor for plan in plans] == [1.0, 1.0]


@pytest.mark.parametrize("steps", [None, 1])
def test_data_too_small_for_a_search_leave_the_users_rate(steps: int | None) -> None:
    """The factor is a number, never nothing (Lightning-AI/pytorch-lightning PR #13845)."""
    plan = scale(
        base_batch_size=3,
        effective_batch_size=3,
        rule="linear",
        optimizer_name="torch.optim.Adam",
        steps_per_epoch=steps,
    )
    assert plan.factor == 1.0
