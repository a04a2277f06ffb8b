"""What changes in the user's training is said, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.config import TunedConfig
from autotune.config.changes import changes, updates_per_epoch
from autotune.learning_rate import scale
from autotune.settings import Settings
from autotune.task import Task

MakeConfig = Callable[..., TunedConfig]


def _line(config: TunedConfig, start: str) -> str | None:
    found = [line for line in changes(config) if line.startswith(start)]
    assert len(found) <= 1
    return found[0] if found else None


def test_baseline_changes_nothing(make_config: MakeConfig) -> None:
    """The settings one had need no reading."""
    assert changes(make_config(Settings(batch_size=16))) == ["Nothing: these are the settings of your baseline."]


def test_larger_batch_is_said_with_updates_and_rate(make_config: MakeConfig) -> None:
    """Batch, number of updates, learning rate with rule and source, and warm-up: before -> after."""
    config = make_config(Settings(batch_size=64))
    assert _line(config, "Batch:") == "Batch: 16 -> 64 samples per optimizer step (4x), loaded as one batch of 64."
    assert "5 -> 2. Fewer updates" in (_line(config, "Optimizer steps per epoch:") or "")
    rate = _line(config, "Learning rate:")
    assert rate == "Learning rate: x4 (linear rule, Goyal et al. 2017): 0.01 -> 0.04, every parameter group."
    assert "first 10 optimizer steps" in (_line(config, "Warm-up:") or "")


def test_the_square_root_names_the_source_that_fits_the_optimizer(make_config: MakeConfig) -> None:
    """For SGD it is not the paper on Adam and RMSprop."""
    plan = scale(base_batch_size=16, effective_batch_size=64, rule="sqrt", optimizer_name="SGD", steps_per_epoch=9)
    config = make_config(Settings(batch_size=64), learning_rate=plan)
    assert "x2 (square-root rule, Krizhevsky 2014)" in (_line(config, "Learning rate:") or "")
    facts = dataclasses.replace(config.facts, optimizer_name="torch.optim.AdamW")
    adam = dataclasses.replace(config, facts=facts)
    assert "x2 (square-root rule, Malladi et al. 2022)" in (_line(adam, "Learning rate:") or "")


def test_same_effective_batch_changes_no_updates(make_config: MakeConfig) -> None:
    """Micro-batches are mentioned, updates and rate are not."""
    config = make_config(Settings(batch_size=4, gradient_accumulation_steps=4))
    assert (
        _line(config, "Batch:")
        == "Batch: 16 samples per optimizer step as before, now accumulated from 4 batches of 4."
    )
    assert _line(config, "Optimizer steps") is None
    assert _line(config, "Learning rate") is None


def test_cap_and_adam_note_are_shown(make_config: MakeConfig) -> None:
    """The notes of the learning-rate plan reach the reader."""
    plan = scale(
        base_batch_size=2, effective_batch_size=64, rule="linear", optimizer_name="torch.optim.AdamW", steps_per_epoch=9
    )
    lines = changes(make_config(Settings(batch_size=64), learning_rate=plan))
    assert any("capped at 8" in line for line in lines)
    assert any("square root" in line for line in lines)


@pytest.mark.parametrize(
    ("precision", "said"), [("tf32", "TF32"), ("bf16-mixed", "bfloat16 autocast"), ("fp16-mixed", "GradScaler")]
)
def test_precision_is_named(make_config: MakeConfig, precision: str, said: str) -> None:
    """What computes with fewer digits is said."""
    config = make_config(Settings(batch_size=16, precision=precision))
    assert said in (_line(config, "Precision:") or "")


def test_changes_of_the_last_digits_are_listed(make_config: MakeConfig) -> None:
    """Whatever reorders sums is in one sentence."""
    line = _line(
        make_config(Settings(batch_size=16, channels_last=True, compile_mode="default", num_threads=1)), "Numbers"
    )
    assert line is not None
    assert all(cause in line for cause in ("memory format", "torch.compile", "number of threads"))


def test_batch_norm_with_accumulation_is_warned_of(make_config: MakeConfig) -> None:
    """Accumulated micro-batches are not one large batch for BatchNorm (ultralytics/yolov5#1630)."""
    line = _line(make_config(Settings(batch_size=16, gradient_accumulation_steps=4)), "BatchNorm:")
    assert "each batch of 16, not from the 64" in (line or "")
    assert _line(make_config(Settings(batch_size=64)), "BatchNorm:") is not None


def test_model_without_batch_norm_gets_no_such_line(make_config: MakeConfig) -> None:
    """Accumulation alone is exact."""
    config = make_config(Settings(batch_size=16, gradient_accumulation_steps=4))
    config = dataclasses.replace(config, facts=dataclasses.replace(config.facts, has_batch_norm=False))
    assert _line(config, "BatchNorm:") is None


def test_dropped_samples_are_counted(make_config: MakeConfig, task: Task) -> None:
    """How many samples an epoch leaves out, and that shuffling leaves out others each time."""
    loader = DataLoader(task.data.dataset, batch_size=16, shuffle=True, drop_last=True)
    config = make_config(Settings(batch_size=11), of=Task(task.model, loader, optimizer=torch.optim.SGD))
    assert _line(config, "drop_last:") == (
        "drop_last: 4 of 70 samples are left out of each epoch, others each time as the order is shuffled."
    )


def test_new_workers_are_said_to_draw_other_numbers(make_config: MakeConfig) -> None:
    """Random augmentation moves into other processes."""
    config = make_config(Settings(batch_size=16, num_workers=2, prefetch_factor=2))
    assert "2 worker processes" in (_line(config, "Loading:") or "")


def test_another_order_of_samples_is_said(make_config: MakeConfig) -> None:
    """Grouping by length changes which samples meet in a batch."""
    line = _line(make_config(Settings(batch_size=16, length_grouped=True)), "Order of samples")
    assert line is not None
    assert "similar length" in line


def test_process_wide_switches_are_listed(make_config: MakeConfig) -> None:
    """What prepare() changes for the whole process is spelled as the calls it makes."""
    line = _line(
        make_config(Settings(batch_size=16, num_threads=3, cudnn_benchmark=True, precision="tf32")), "Process-wide:"
    )
    assert line is not None
    for call in ("set_num_threads(3)", "cudnn.benchmark = True", 'set_float32_matmul_precision("high")'):
        assert call in line


def test_switches_that_are_set_already_are_not_listed(make_config: MakeConfig) -> None:
    """The threads the caller has anyway are no change."""
    config = make_config(Settings(batch_size=16, num_threads=torch.get_num_threads()))
    assert _line(config, "Process-wide:") is None


@pytest.mark.parametrize(
    ("samples", "batch", "steps", "drop_last", "updates"),
    [
        (70, 8, 4, False, 3),
        (70, 32, 1, False, 3),
        (70, 32, 1, True, 2),
        (64, 8, 4, False, 2),
        (None, 8, 1, False, None),
    ],
)
def test_updates_per_epoch_counts_the_last_group(
    samples: int | None, batch: int, steps: int, drop_last: bool, updates: int | None
) -> None:
    """ceil(N / (batch x accumulation)), a dropped batch left out."""
    settings = Settings(batch_size=batch, gradient_accumulation_steps=steps)
    assert updates_per_epoch(samples, settings, drop_last=drop_last) == updates


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("the model's own .loss", True),
        ("training_step mine.step", True),
        ("loss_fn mine.token_mean", True),
        ("loss_fn torch.nn.modules.loss.CrossEntropyLoss", False),
        ("loss_fn torch.nn.functional.cross_entropy; not passed to the model: id", False),
        ("loss_fn torch.nn.modules.loss.MSELoss", False),
    ],
)
def test_accumulating_means_over_tokens_is_said_to_be_approximate(
    make_config: MakeConfig, loss: str, said: bool
) -> None:
    """Where nobody knows what a loss is the mean of, and only with accumulation."""
    for steps in (1, 4):
        config = make_config(Settings(batch_size=16, gradient_accumulation_steps=steps))
        config = dataclasses.replace(config, facts=dataclasses.replace(config.facts, loss=loss))
        line = _line(config, "Accumulation:")
        assert (line is not None) == (said and steps > 1)
        assert line is None or "(loss, weight)" in line
