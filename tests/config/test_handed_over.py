"""What a caller hands to a config: checked, and scaled only once."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.config import TunedConfig
from autotune.errors import ConfigError, TaskError
from autotune.settings import Settings
from autotune.task import Task

MakeConfig = Callable[..., TunedConfig]
LARGER = Settings(batch_size=64)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def _rate(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def test_rates_are_scaled_once(make_config: MakeConfig, task: Task) -> None:
    """The second call of the same config is refused and changes nothing."""
    config, optimizer = make_config(LARGER), _sgd(task.build_model())
    config.apply_to(optimizer)
    with pytest.raises(TaskError, match="multiplied by 4 a second time"):
        config.apply_to(optimizer)
    assert _rate(optimizer) == pytest.approx(0.04)


def test_an_optimizer_of_the_config_is_scaled_already(make_config: MakeConfig, task: Task) -> None:
    """Applying it to what ``optimizer`` built would multiply a second time."""
    config = make_config(LARGER)
    with pytest.raises(TaskError, match="second time"):
        config.apply_to(config.optimizer(task.build_model()))


def test_another_config_may_scale_again(make_config: MakeConfig, task: Task) -> None:
    """It is another decision; and a factor of one does no harm."""
    optimizer = _sgd(task.build_model())
    make_config(LARGER).apply_to(optimizer)
    make_config(Settings(batch_size=32)).apply_to(optimizer)
    assert _rate(optimizer) == pytest.approx(0.08)
    same = make_config(Settings(batch_size=16))
    same.apply_to(optimizer)
    same.apply_to(optimizer)


def test_the_mark_goes_where_the_rates_go(make_config: MakeConfig, task: Task, tmp_path: Path) -> None:
    """A state loaded from a file brings both; an older, unscaled state may be scaled."""
    config, optimizer = make_config(LARGER), _sgd(task.build_model())
    before, file = copy.deepcopy(optimizer.state_dict()), io.BytesIO()
    config.apply_to(optimizer)
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    config.save(tmp_path / "tuned.json")
    loaded = TunedConfig.load(tmp_path / "tuned.json")
    resumed = _sgd(task.build_model())
    resumed.load_state_dict(torch.load(file, weights_only=True))
    with pytest.raises(TaskError, match="second time"):
        loaded.apply_to(resumed)
    resumed.load_state_dict(before)
    loaded.apply_to(resumed)
    assert _rate(resumed) == pytest.approx(0.04)


@pytest.mark.parametrize("path", [None, 5, "a\0b", b"a\0b"])
def test_what_is_no_path_is_a_config_error(make_config: MakeConfig, path: Any) -> None:
    """Of ``load`` and of ``save``."""
    with pytest.raises(ConfigError, match="no path of a config"):
        TunedConfig.load(path)
    with pytest.raises(ConfigError, match="no path of a config"):
        make_config().save(path)


def test_wrong_types_are_named(make_config: MakeConfig, tmp_path: Path) -> None:
    """Task, model and optimizer."""
    config = make_config()
    config.save(tmp_path / "tuned.json")
    with pytest.raises(TaskError, match=r"task must be an autotune\.Task, not int"):
        TunedConfig.load(tmp_path / "tuned.json", task=5)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="optimizer must be a torch Optimizer, not NoneType"):
        config.apply_to(None)  # type: ignore[arg-type]
    for build in (config.prepare, config.optimizer):
        with pytest.raises(TaskError, match=r"model must be a torch\.nn\.Module, not str"):
            build("x")  # type: ignore[arg-type]


def test_configs_are_hashable(make_config: MakeConfig) -> None:
    """By identity: each is one answer of one run."""
    config = make_config()
    assert len({config, config, make_config()}) == 2


class _Other(nn.Module):
    """Another model than the tuned one."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x)


def _other(model: Any) -> Task:
    data = TensorDataset(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64))
    return Task(model, data, loss_fn=nn.CrossEntropyLoss(), device="cpu", name="other")


def test_another_task_is_said_at_once(make_config: MakeConfig, tmp_path: Path) -> None:
    """By both names and part by part, when loading, and not again."""
    make_config().save(tmp_path / "tuned.json")
    with pytest.warns(UserWarning, match=r"'tiny', which is not .*'other' .*model structure: 1 TinyNet, ") as said:
        loaded = TunedConfig.load(tmp_path / "tuned.json", task=_other(_Other()))
    assert len(said) == 1
    loaded.prepare(_Other())


def test_another_task_of_factories_is_said_when_a_model_is_there(make_config: MakeConfig, tmp_path: Path) -> None:
    """Loading calls no factory of the user's."""
    make_config().save(tmp_path / "tuned.json")
    loaded = TunedConfig.load(tmp_path / "tuned.json", task=_other(_Other))
    with pytest.warns(UserWarning, match="'tiny'.*'other'"):
        loaded.prepare(_Other())
    loaded.prepare(_Other())


def test_the_same_task_is_not_warned_of(make_config: MakeConfig, task: Task, tmp_path: Path) -> None:
    """Whether its model is made or not."""
    make_config().save(tmp_path / "tuned.json")
    TunedConfig.load(tmp_path / "tuned.json", task=task).prepare(task.build_model())
