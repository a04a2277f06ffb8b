"""The command ``lr``, in this process, on a toy task."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import command, main
from autotune.config import measuring
from autotune.errors import MissingPackageError
from autotune.learning_rate import LrCurve, LrSuggestion, suggest

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import Task

def make():
    rows = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    labels = (rows[:, 0] > 0).long()
    return Task(nn.Linear(4, 2), TensorDataset(rows, labels), loss_fn=nn.CrossEntropyLoss(), device="cpu",
                optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A task file; its module is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "task_of_lr_test.py").write_text(TASK)
    yield f"{tmp_path / 'task_of_lr_test.py'}:make"
    sys.modules.pop("task_of_lr_test", None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the range test is asked for, in its place."""
    seen: list[dict[str, Any]] = []

    def find_lr(task: Any, settings: Any, **arguments: Any) -> LrSuggestion:
        seen.append({"settings": settings, **arguments})
        rates = tuple(10 ** (index / 10 - 5) for index in range(51))
        return suggest([LrCurve(rates, tuple(2.0 - min(1.5, max(0, index - 20) / 10) for index in range(51)))])

    monkeypatch.setattr(measuring, "find_lr", find_lr)
    return seen


def test_the_arguments_arrive(spec: str, asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag reaches the range test; the suggestion is what is printed."""
    flags = "--low 1e-5 --high 2 --steps 50 --seeds 2 --time-budget 9 --no-isolate"
    assert main(["lr", spec, *flags.split()]) == 0
    sweep = {"low": 1e-5, "high": 2.0, "steps": 50, "seeds": 2, "time_budget_s": 9.0, "isolate": False}
    assert asked == [{"settings": None, **sweep}]
    printed = capsys.readouterr()
    assert printed.out.startswith("learning rate 0.0")
    assert "nothing of yours is changed" in printed.err


def test_json_is_one_document(spec: str, asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """With the curves in it."""
    assert main(["lr", spec, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["confidence"] == "low"
    assert len(document["curves"][0]["lr"]) == 51


def test_a_real_sweep_runs(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On the baseline of the task, in this process."""
    assert main(["lr", spec, "--no-isolate", "--seeds", "1", "--steps", "30", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["current"] == 0.1
    assert len(document["curves"]) == 1


def test_a_plot_is_refused_before_time_is_spent(
    spec: str, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without matplotlib, and into a folder that is not there."""
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["lr", spec, "--plot", str(tmp_path / "lr.png")]) == MissingPackageError.exit_code
    assert main(["lr", spec, "--plot", str(tmp_path / "no" / "lr.png")]) == 2
    assert not asked


def test_a_config_brings_its_settings(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The range test is then that of the config, loaded with the task."""
    from autotune.config import TunedConfig

    class Config:
        def find_lr(self, **arguments: Any) -> LrSuggestion:
            return suggest([], note=f"with seeds={arguments['seeds']}")

    loaded: list[Any] = []

    def load(path: str, task: Any = None) -> Config:
        loaded.append((path, task.name))
        return Config()

    monkeypatch.setattr(TunedConfig, "load", load)
    assert main(["lr", spec, "--config", "tuned.json"]) == 0
    assert loaded[0][0] == "tuned.json"
    assert "with seeds=3" in capsys.readouterr().out
