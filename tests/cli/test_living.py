"""``check``, ``retune`` and ``rollback``, with what they do to the machine replaced."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune import nightly
from autotune.cli import main
from autotune.cli.arguments import CHECK_CODES, exit_code_table
from autotune.config import TunedConfig
from autotune.config.handed_over import fingerprint_of
from autotune.errors import BusyError
from autotune.hardware import Hardware
from autotune.nightly.check import EXIT_CODES, Check
from autotune.profiles import Key, Profiles

DATA = Path(__file__).parents[1] / "config" / "data" / "version_1.json"

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import Task

def make():
    return Task(nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long)), device="cpu")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a task file and a pyproject.toml of two tasks."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "task_of_living_test.py").write_text(TASK)
    spec = '"task_of_living_test.py:make"'
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.autotune]\nstore = "profiles"\ntime_budget_s = 9\n'
        f'[tool.autotune.tasks.one]\ntask = {spec}\nout = "tuned.json"\n[tool.autotune.tasks.two]\ntask = {spec}\n'
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("task_of_living_test", None)


@pytest.mark.parametrize("verdict", EXIT_CODES)
def test_check_ends_with_the_code_of_its_verdict(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: Any
) -> None:
    """The sentence for people, or one JSON document."""
    asked: list[Any] = []

    def check(config: Any, here: Any, *, budget_s: float) -> Check:
        asked.append((config.settings, here, budget_s))
        return Check(verdict=verdict, reason="So it is.")

    monkeypatch.setattr(nightly, "opened", lambda _: contextlib.nullcontext("here"))
    monkeypatch.setattr(nightly, "check", check)
    arguments = ["check", str(DATA), "--task", "task_of_living_test.py:make", "--time-budget", "7"]
    assert main(arguments) == EXIT_CODES[verdict]
    assert capsys.readouterr().out == f"{verdict}: So it is.\n"
    assert main([*arguments, "--json"]) == EXIT_CODES[verdict]
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict
    assert asked[0] == (TunedConfig.load(DATA).settings, "here", 7.0)


def test_the_help_lists_every_exit_code() -> None:
    """Those of the verdicts and of a busy machine too, each once."""
    lines = [int(found) for found in re.findall(r"^ +(\d+)  ", exit_code_table(), re.MULTILINE)]
    assert {*EXIT_CODES.values(), BusyError.exit_code} <= set(lines)
    assert len(set(lines)) == len(lines)
    assert set(CHECK_CODES) == set(EXIT_CODES.values()) - {0}


def test_retune_goes_through_the_tasks_and_writes_what_became_of_them(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A busy task does not keep the next from its turn; the exit code is the first failure's."""
    asked: list[Any] = []

    def retune(task: Any, store: Profiles, *, name: str, rules: Any) -> Any:
        asked.append((name, store.path, rules.time_budget_s, rules.allow_batch_change))
        if name == "one":
            raise BusyError("Not re-tuned: others.", "Later.")
        return SimpleNamespace(changed=True, line=lambda: "2026 two rewritten", to_json=lambda: {"task": name})

    noted: list[Any] = []
    monkeypatch.setattr(nightly, "retune", retune)
    monkeypatch.setattr(nightly, "note", lambda *arguments: noted.append(arguments[1:]))
    assert main(["retune", "--json", "--allow-batch-change"]) == 8
    document = json.loads(capsys.readouterr().out)
    assert [one["task"] for one in document["tasks"]] == ["one", "two"]
    assert document["tasks"][0]["exit_code"] == 8
    (line,) = (project / "profiles" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == document["tasks"][0]
    assert json.loads(line)["outcome"] == "busy"
    assert asked == [("one", project / "profiles", 9, True), ("two", project / "profiles", 9, True)]
    assert noted == [(Profiles(project / "profiles"), None)]
    assert main(["retune", "--name", "two", "--time-budget", "5"]) == 0
    assert capsys.readouterr().out == "2026 two rewritten\n"
    assert asked[-1] == ("two", project / "profiles", 5.0, False)


def test_rollback_puts_the_earlier_result_back(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the store and in the plain config beside it, with a line in the change log."""
    from autotune.cli.task_file import load_task

    task = load_task("task_of_living_test.py:make")
    key = Key(task=fingerprint_of(task, task.build_model()), hardware=Hardware.detect(device="cpu").fingerprint)
    document = json.loads(DATA.read_text())
    store = Profiles(project / "profiles")
    for trials in (1, 2):
        store.put(key, {**document, "evidence": {**document["evidence"], "trials": trials}})
    assert main(["rollback", "--name", "one"]) == 0
    assert "One [" in capsys.readouterr().out
    assert json.loads((project / "tuned.json").read_text())["evidence"]["trials"] == 1
    assert "rolled back" in (project / "profiles" / "changes.log").read_text()
    assert main(["rollback", "--name", "one"]) == 4
    assert main(["rollback"]) == 2
    assert "--name one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["retune", "none.toml"], 4, "cannot be read"),
        (["retune", "--name", "three"], 2, "It has: one, two"),
        (["check", "none.json", "--task", "task_of_living_test.py:make"], 4, "cannot be read"),
        (["check", "tuned.json"], 2, "--task"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    """With the exit code of their kind."""
    assert main(arguments) == code
    assert said in capsys.readouterr().err
