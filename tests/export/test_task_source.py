"""The parts of a plain script taken from the task's file, by code that does without the package."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.cli.task_file import load_task, task_source
from autotune.config import TunedConfig
from autotune.export import Export, TaskSource, to
from autotune.settings import Settings

from .conftest import MakeConfig, facts_of

_NAME = "task_of_export_test"
_WHOLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from autotune import Task, autotune

def collate(samples):
    return torch.utils.data.default_collate(samples)

def two_groups(params):
    first, *rest = params
    return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": rest}], lr=0.01)

def make():
    data = TensorDataset(torch.randn(70, 4), torch.arange(70) % 2)
    loader = DataLoader(data, batch_size=8, collate_fn=collate)
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    return Task(nn.Linear(4, 2), loader, loss_fn=weighted, optimizer=two_groups, device="cpu")

if __name__ == "__main__":
    autotune(make())
"""
_STEP = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import autotune

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

def rows():
    return TensorDataset(torch.randn(70, 4), torch.arange(70) % 2)

def step(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1]), 7

def make():
    return autotune.Task(Net, rows, training_step=step, device="cpu")
"""

Exported = Callable[[str], Export]


@pytest.fixture
def exported(tmp_path: Path, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exported]:
    """``exported(code)``: the plain export of a config of the task that a file of this code makes."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(code: str) -> Export:
        (tmp_path / f"{_NAME}.py").write_text(code)
        spec = f"{tmp_path / _NAME}.py:make"
        task = load_task(spec)
        config = dataclasses.replace(make_config(Settings(batch_size=16)), task=task, facts=facts_of(task))
        folder, module, function = task_source(spec)
        export = to(config, "plain", source=TaskSource(folder=folder, module=module, function=function))
        sys.modules.pop(_NAME)
        return export

    yield make
    sys.modules.pop(_NAME, None)


def _names(parts: str) -> dict[str, Any]:
    """What the module of the parts defines."""
    names: dict[str, Any] = {"__name__": "train_parts"}
    exec(compile(parts, "train_parts.py", "exec"), names)
    return names


def test_the_script_is_complete_and_runs_where_the_package_cannot_be_imported(
    exported: Exported, tmp_path: Path
) -> None:
    """Model, loader with its collate_fn, a loss with class weights and an optimizer of two groups are the task's."""
    export = exported(_WHOLE)
    assert export.fill_in == ()
    for name, text in export.files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "autotune.py").write_text("raise ImportError('the package was asked for')")
    environment = {"PYTHONPATH": str(tmp_path / "before"), "PATH": ""}
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("epoch 0: loss ")
    assert "nan" not in done.stdout


def test_the_parts_are_the_tasks_own(exported: Exported) -> None:
    """A model class, a dataset factory, and a step that names its weight; the package stays as it was imported."""
    before = sys.modules["autotune"]
    parts = _names(exported(_STEP).beside["train_parts.py"])
    model, data = parts["make_model"](), parts["make_dataset"]()
    assert type(model).__qualname__ == "Net"
    assert (len(data), parts["make_dataset"]() is data) == (70, True)
    loss, weight = parts["training_step"](model, [torch.randn(3, 4), torch.zeros(3, dtype=torch.long)])
    assert (loss.ndim, weight) == (0, 7)
    assert sys.modules["autotune"] is before


def test_an_optimizer_of_the_users_own_is_made_at_the_tuned_rate(exported: Exported) -> None:
    """Each group's rate times the factor, over the very model."""
    parts = _names(exported(_WHOLE).beside["train_parts.py"])
    model = parts["make_model"]()
    optimizer = parts["make_optimizer"](model)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.02])
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_what_is_measured_by_a_guess_is_left_to_fill_in(exported: Exported) -> None:
    """A guessed loss must not train; all else is taken."""
    export = exported(_WHOLE.replace("loss_fn=weighted, ", ""))
    assert [one.partition(":")[0] for one in export.fill_in] == ["loss_fn"]
    assert "a guess" in export.fill_in[0]
    assert "# To fill in, in train_parts.py: loss_fn\n" in export.text
    with pytest.raises(NotImplementedError, match="a guess"):
        _names(export.beside["train_parts.py"])["loss_fn"](torch.zeros(1), torch.zeros(1))


def test_a_file_that_needs_the_package_is_left_alone_and_said(exported: Exported) -> None:
    """For a module within the package there is no stand-in: all parts are marked, with the reason."""
    export = exported(f"from autotune.settings import Settings\n{_WHOLE}")
    names = [one.partition(":")[0] for one in export.fill_in]
    assert names == ["make_model", "make_dataset", "loss_fn", "collate_fn", "make_optimizer"]
    parts = export.beside["train_parts.py"]
    assert f"Nothing was taken from the task's file: {_NAME} imports autotune.settings" in " ".join(parts.split())
    assert "sys.path" not in parts


def test_without_a_task_file_all_is_left_and_said(make_config: MakeConfig) -> None:
    """A config that was loaded knows no objects of the user's."""
    export = to(TunedConfig.from_json(make_config().to_json()), "plain")
    assert [one.partition(":")[0] for one in export.fill_in] == ["make_model", "make_dataset", "loss_fn"]
    assert "no task file was given" in export.beside["train_parts.py"]
    assert export.to_json()["fill_in"] == list(export.fill_in)


def test_a_name_in_a_file_cannot_end_the_text_it_is_written_into(make_config: MakeConfig) -> None:
    """The optimizer's name out of a JSON that somebody sent goes into code as words only."""
    document = make_config().to_json()
    evil = 'x.Y"); raise SystemExit("'
    document["optimizer"]["name"] = document["facts"]["optimizer_name"] = evil
    document["not_portable"].append(f"optimizer: {evil}")
    document["same_batch"] = None
    export = to(TunedConfig.from_json(document), "plain")
    with pytest.raises(NotImplementedError):
        _names(export.beside["train_parts.py"])["make_optimizer"](nn.Linear(1, 1))
