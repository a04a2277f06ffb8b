"""``TunedConfig.load`` on a store: this machine's entry, or why there is none."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import TunedConfig
from autotune.errors import ConfigError
from autotune.hardware import Hardware
from autotune.profiles import Key, Profiles

Made = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch, record: dict[str, Any]) -> None:
    """Detection gives a fixed machine."""
    here = SimpleNamespace(fingerprint="sha256:here", to_json=lambda: record)
    monkeypatch.setattr(Hardware, "detect", staticmethod(lambda **_: here))


def put(store: Profiles, document: dict[str, Any], rules: str = "") -> None:
    """Stores a document under the fingerprints it holds."""
    key = Key(task=document["task"]["fingerprint"], hardware=document["hardware"]["fingerprint"], rules=rules)
    store.put(key, document)


@pytest.mark.parametrize("form", ["folder", "store.json"])
def test_the_entry_of_this_machine_is_picked(tmp_path: Path, made: Made, form: str) -> None:
    """Whatever stands beside it, and in either form of store (NVIDIA/tilus#156)."""
    store = Profiles(tmp_path / form)
    put(store, made(machine="else", number=1, cores=64))
    put(store, made(machine="here", number=2))
    put(store, made(machine="other", number=3, torch="2.13.0+cpu"))
    assert TunedConfig.load(store.path).evidence.trials == 2


def test_a_folder_of_saved_configs_is_a_store(tmp_path: Path, made: Made) -> None:
    """Files that ``save`` wrote count as entries; what is no config does not disturb."""
    (tmp_path / "a.json").write_text(json.dumps(made(machine="else", number=1, cores=64)))
    (tmp_path / "b.json").write_text(json.dumps(made(machine="here", number=2)))
    (tmp_path / "package.json").write_text('{"name": "x"}')
    assert TunedConfig.load(tmp_path).evidence.trials == 2


def test_no_entry_lists_the_near_ones_and_why(tmp_path: Path, made: Made) -> None:
    """Field by field, the nearest first, with the remedy."""
    store = Profiles(tmp_path / "s")
    put(store, made(machine="b", cores=64, torch="2.12.0+cpu", cpu_model="Old"))
    put(store, made(machine="a", cores=8))
    with pytest.raises(ConfigError) as caught:
        TunedConfig.load(store.path)
    said = str(caught.value)
    assert "no config for this machine" in said
    assert "cores: 8 there, 4 here" in said
    assert said.index("cores: 8") < said.index("cores: 64") < said.index("cpu_model: Old there, Example CPU here")
    assert "torch-autotune retune" in said


def test_a_patch_release_of_torch_is_near_and_said(tmp_path: Path, made: Made) -> None:
    """The entry is taken with a warning that names the check."""
    put(Profiles(tmp_path / "s"), made(machine="old", number=5, torch="2.14.0+cpu"))
    with pytest.warns(UserWarning, match=r"torch: 2\.14\.0\+cpu there, 2\.14\.1\+cpu here.*autotune check"):
        assert TunedConfig.load(tmp_path / "s").evidence.trials == 5


def test_an_exact_entry_comes_before_a_near_one(tmp_path: Path, made: Made) -> None:
    """Also where the near one is newer."""
    store = Profiles(tmp_path / "s")
    put(store, made(machine="here", number=1))
    put(store, made(machine="old", number=2, torch="2.14.0+cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert TunedConfig.load(store.path).evidence.trials == 1


def test_several_tasks_need_the_task(tmp_path: Path, made: Made) -> None:
    """Nothing is picked by chance."""
    store = Profiles(tmp_path / "s")
    put(store, made(task="a", machine="here"))
    put(store, made(task="b", machine="here"))
    with pytest.raises(ConfigError, match="several tasks for this machine: task a, task b"):
        TunedConfig.load(store.path)


def test_the_tasks_entry_is_picked(tmp_path: Path, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the fingerprint of the task that is given."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from autotune import Task
    from autotune.config.handed_over import fingerprint_of

    data = TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))
    task = Task(nn.Linear(3, 2), data, loss_fn=nn.CrossEntropyLoss(), device="cpu")
    own = fingerprint_of(task, task.model).removeprefix("sha256:")
    store = Profiles(tmp_path / "s")
    put(store, made(task="a", machine="here", number=1))
    with pytest.raises(ConfigError, match="no config for the task 'Linear' on this machine"):
        TunedConfig.load(store.path, task=task)
    put(store, made(task=own, machine="here", number=2))
    assert TunedConfig.load(store.path, task=task).evidence.trials == 2


def test_the_task_that_is_stored_instead_is_told_apart(tmp_path: Path, made: Made) -> None:
    """Part by part, where the machine is the same."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    from autotune import Task

    data = TensorDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))
    task = Task(nn.Linear(3, 2), data, loss_fn=nn.CrossEntropyLoss(), device="cpu")
    store = Profiles(tmp_path / "s")
    put(store, made(task="a", machine="here"))
    with pytest.raises(
        ConfigError, match="nearest task of this machine, task a, differs: samples per epoch: 5200 there"
    ):
        TunedConfig.load(store.path, task=task)
    (tmp_path / "one.json").write_text(json.dumps(made(task="a", machine="here")))
    with pytest.warns(
        UserWarning, match=r"not the task 'Linear' given with it \(samples per epoch: 5200 there, 8 here"
    ):
        TunedConfig.load(tmp_path / "one.json", task=task)


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    """No traceback of ours, one error."""
    with pytest.raises(ConfigError, match="holds no config for this machine"):
        TunedConfig.load(tmp_path)
