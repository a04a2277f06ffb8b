"""``torch-autotune retune`` as it is called, on a machine of known rates."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune import Settings, TunedConfig
from autotune.cli import main
from autotune.profiles import Profiles

_STORED = Settings(batch_size=32, channels_last=True)
_BETTER = Settings(batch_size=16, gradient_accumulation_steps=2, channels_last=True)
_TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import Task

def make():
    return Task(nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long)), device="cpu")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any) -> Any:
    """A folder with a task file and its table; the machine, the study and the race's clock are the world's."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys.modules["autotune.nightly.retune"], "Seams", lambda: world.seams)
    (tmp_path / "task_of_command_test.py").write_text(_TASK)
    (tmp_path / "tasks.toml").write_text(
        'store = "profiles"\n[tasks.photos]\ntask = "task_of_command_test.py:make"\nout = "tuned.json"\n'
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("task_of_command_test", None)


def test_a_drifted_config_is_rewritten_and_logged_old_to_new(
    project: Path, world: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 0, prints and logs rates and settings that moved; the next night changes nothing."""
    store = Profiles(project / "profiles")
    store.put(world.key, world.config(_STORED).to_json(), why="earlier")
    world.rates |= {_STORED: 120.0, _BETTER: 140.0}
    world.answer = _BETTER
    assert main(["retune", "tasks.toml"]) == 0
    (line,) = (project / "profiles" / "changes.log").read_text().splitlines()
    assert capsys.readouterr().out == f"{line}\n"
    when_and_task, _, changed = line.partition(" rewritten: ")
    assert when_and_task.split()[1] == "photos"
    old, new = (float(rate) for rate in changed.partition(" samples/s")[0].split(" -> "))
    assert (old, new) == (pytest.approx(120, abs=3), pytest.approx(140, abs=3))
    assert "x, at least 1." in changed
    assert changed.endswith("; moved: batch_size 32 -> 16, gradient_accumulation_steps 1 -> 2")
    assert TunedConfig.load(project / "tuned.json").settings == _BETTER
    assert main(["retune", "tasks.toml", "--json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (task["outcome"], task["verdict"]) == ("unchanged", "valid")
    outcomes = [json.loads(one)["outcome"] for one in (project / "profiles" / "metrics.jsonl").read_text().splitlines()]
    assert outcomes == ["rewritten", "unchanged"]
    assert len((project / "profiles" / "changes.log").read_text().splitlines()) == 1
