"""``torch-autotune export``: text or JSON on stdout, what is missing on stderr, files where they are asked for."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.export import DIALECTS

SAVED = Path(__file__).parent.parent / "config" / "data" / "version_1.json"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_is_printed(dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The text goes to stdout alone, what is not expressed to stderr."""
    assert main(["export", str(SAVED), "--to", dialect]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() or dialect == "env"
    assert "Not expressed: " in printed.err
    assert "Not expressed: " not in printed.out


def test_json_holds_values_files_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """One document, each missing thing with its reason."""
    assert main(["export", str(SAVED), "--to", "hf", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["dialect"] == "hf"
    assert document["data"]["training_arguments"]["per_device_train_batch_size"] > 0
    assert all(set(one) == {"what", "reason"} for one in document["not_expressed"])


def test_files_are_written_and_what_is_the_users_is_never_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is written anew, the parts beside it once."""
    out, parts = tmp_path / "run.py", tmp_path / "train_parts.py"
    assert main(["export", str(SAVED), "--to", "plain", "--out", str(out)]) == 0
    assert "def make_model" in parts.read_text()
    parts.write_text("mine = 1\n")
    out.write_text("old")
    capsys.readouterr()
    assert main(["export", str(SAVED), "--to", "plain", "--out", str(out)]) == 0
    assert parts.read_text() == "mine = 1\n"
    assert "import train_parts as yours" in out.read_text()
    assert f"{parts} is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["missing.json", "--to", "hf"], 4),
        ([str(SAVED), "--to", "keras"], 2),
        ([str(SAVED)], 2),
        ([str(SAVED), "--to", "env", "--out", "/nowhere/at/all"], 2),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind of failure has the code that the help lists, and says why."""
    assert main(["export", *arguments]) == code
    assert capsys.readouterr().err


def test_what_is_left_to_fill_in_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, and in both files."""
    out = tmp_path / "run.py"
    assert main(["export", str(SAVED), "--to", "plain", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "To fill in, in train_parts.py: make_dataset: the dataset that was tuned\n" in said
    assert "To fill in, in train_parts.py: make_model, make_dataset, loss_fn" in out.read_text()


def test_with_the_task_model_data_and_loss_come_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to fill in; the script is not written over the task's file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "exported_task.py").write_text(_TASK)
    out = tmp_path / "run.py"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the saved config is of another task, which is said
        spec = f"{tmp_path / 'exported_task.py'}:make"
        assert main(["export", str(SAVED), "--to", "plain", "--task", spec, "--out", str(out)]) == 0
    parts = (tmp_path / "train_parts.py").read_text()
    assert f"FOLDER, MODULE, FUNCTION = {str(tmp_path)!r}, 'exported_task', 'make'" in parts
    assert "NotImplementedError" not in parts
    said = capsys.readouterr().err
    assert "To fill in" not in said
    arguments = ["export", str(SAVED), "--to", "plain", "--task", spec, "--out", str(tmp_path / "exported_task.py")]
    assert main(arguments) == 2
    assert "the task's own file" in capsys.readouterr().err


def test_a_script_is_not_written_over_a_task_that_was_named_as_a_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in a package its file lies."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "exported_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(_TASK)
    arguments = ["export", str(SAVED), "--to", "plain", "--task", "exported_package.train:make"]
    assert main([*arguments, "--out", "exported_package/train.py"]) == 2
    assert "the task's own file" in capsys.readouterr().err
    assert (package / "train.py").read_text() == _TASK


_TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import Task

class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

def make():
    data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    return Task(Net, data, loss_fn=nn.CrossEntropyLoss(), device="cpu")
"""
