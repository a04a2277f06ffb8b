"""The demo as a task."""

from __future__ import annotations

import builtins
import pickle

import pytest
import torch

from autotune.demo import demo_task
from autotune.demo.task import LEARNING_RATE, make_optimizer
from autotune.errors import MissingPackageError, SettingsError
from autotune.task import Task


def test_the_task_trains_as_it_stands(tmp_path):
    """Model, data, loss and optimizer fit together for one step."""
    task = demo_task(tmp_path, crops=20)
    assert isinstance(task, Task)
    assert task.base_batch_size == 32
    model = task.build_model()
    images, labels = torch.utils.data.default_collate([task.data.dataset[index] for index in range(4)])
    task.loss_fn(model(images), labels).backward()
    optimizer = make_optimizer(model.parameters())
    optimizer.step()
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["lr"] == LEARNING_RATE


def test_the_task_pickles_by_reference(tmp_path):
    """Plain pickle suffices, so that children started by spawn can read it."""
    task = pickle.loads(pickle.dumps(demo_task(tmp_path, crops=20)))
    assert len(task.data.dataset) == 20


def test_the_default_size_allows_eight_times_the_batch(monkeypatch, tmp_path):
    """Twenty updates of 256 samples fit into an epoch of the default size."""
    asked: list[int] = []

    def prepare(cache_dir, crops, *, say):
        asked.append(crops)
        raise SettingsError("enough seen")

    monkeypatch.setattr("autotune.demo.task.prepare_crops", prepare)
    with pytest.raises(SettingsError):
        demo_task(tmp_path)
    assert asked[0] // 20 >= 8 * 32


def test_missing_torchvision_is_named_with_the_extra(monkeypatch, tmp_path):
    """Without torchvision the remedy is the extra to install."""
    real = builtins.__import__

    def without_torchvision(name, *args, **kwargs):
        if name == "autotune.demo.dataset":
            raise ImportError("No module named 'torchvision'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_torchvision)
    with pytest.raises(MissingPackageError, match="torchvision") as caught:
        demo_task(tmp_path, crops=10)
    assert "torch-autotune[demo]" in caught.value.remedy
