"""The command for real: a small task tuned in a child process, and one stopped by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TASK = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune import Task

class Net(nn.Linear):
    def __init__(self):
        super().__init__(8, 2)

def make():
    inputs = torch.randn(2000, 8)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    return Task(Net, data, loss_fn=nn.CrossEntropyLoss(), optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
"""

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(tmp_path):
    """Starts the command in a folder of its own that holds a task file."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text(TASK)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

    def start(*argv: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "autotune", *argv],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.slow
def test_tune_then_show(command, tmp_path):
    """A file beside nothing installed is tuned from another folder; its result is one document and can be shown."""
    tuning = command("tune", "jobs/train.py:make", "--out", "tuned.json", "--time-budget", "8", "--json")
    printed, said = tuning.communicate(timeout=110)
    assert tuning.returncode == 0, said
    document = json.loads(printed)
    assert document == json.loads((tmp_path / "tuned.json").read_text())
    assert document["optimizer"]["name"] == "torch.optim.SGD"
    assert "left] start" in said
    showing = command("show", "tuned.json")
    printed, said = showing.communicate(timeout=110)
    assert (showing.returncode, said) == (0, "")
    assert "Net" in printed


@pytest.mark.slow
def test_ctrl_c_while_measuring(command, tmp_path):
    """130, one sentence, and no file; the child is gone when the command is."""
    tuning = command("tune", "jobs/train.py:make", "--out", "tuned.json", "--time-budget", "100")
    lines = []
    for line in tuning.stderr:
        lines.append(line)
        if "search:" in line:
            break
    tuning.send_signal(signal.SIGINT)
    printed, said = tuning.communicate(timeout=60)  # ends only when no child holds the pipes any more
    assert tuning.returncode == 130, "".join([*lines, said])
    assert printed == ""
    assert "torch-autotune: Interrupted." in said
    assert "Traceback" not in said
    assert not (tmp_path / "tuned.json").exists()
