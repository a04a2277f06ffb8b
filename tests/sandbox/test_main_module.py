"""Whatever the caller's main program is, its classes and lambdas reach the child."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

_TASK = """
import json, multiprocessing, sys, types
import torch
from autotune.hardware import Hardware, Limits
from autotune.measurement import Probe
from autotune.sandbox import Sandbox
from autotune.settings import Settings

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, rows):
        return self.layer(rows)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return torch.full((4,), float(index))

def tune(workers=None, model=None):
    task = types.SimpleNamespace(
        model=model or Net(), dataset=Rows(), loss_fn=lambda output: output.square().mean(), workers=workers
    )
    limits = Limits(ram_bytes=2**32, shm_bytes=None, open_files=None)
    with Sandbox(task, Hardware.detect(), limits, bench="sandbox_benches:Trainer") as sandbox:
        outcome = sandbox.run(Probe(kind="joint", settings=Settings(), deadline_s=100.0))
    print("RESULT", outcome.warnings[0])
"""


def _run(
    folder: Path, arguments: list[str], text: str | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(HERE)])
    return subprocess.run(
        [sys.executable, *arguments],
        input=text,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def _result(done: subprocess.CompletedProcess[str]) -> Any:
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, done.stdout + done.stderr
    return json.loads(lines[0].removeprefix("RESULT "))


def _left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith("autotune-")]


def test_program_on_standard_input(short_folder: Path) -> None:
    """Classes and lambdas of a program that has no file travel by value.

    Report: computational-cell-analytics/dl-for-micro#20.
    """
    result = _result(_run(short_folder, ["-"], _TASK + "\ntune()\n"))
    assert result["model"] == "__main__"
    assert result["loss"] > 0
    assert _left(short_folder) == []


def test_script_without_a_guard_runs_once(short_folder: Path) -> None:
    """An unguarded script is not run again by the child.

    Reports: pytorch/pytorch#46648, pytorch/pytorch#5858.
    """
    (short_folder / "train.py").write_text("open('runs', 'a').write('x')\n" + _TASK + "\ntune()\n")
    assert _result(_run(short_folder, ["train.py"]))["loss"] > 0
    assert (short_folder / "runs").read_text() == "x"


def test_model_beside_a_script_started_from_elsewhere(short_folder: Path) -> None:
    """A module that lies beside the script is found although the working directory is another."""
    beside, elsewhere = short_folder / "project", short_folder / "elsewhere"
    beside.mkdir()
    elsewhere.mkdir()
    (beside / "net.py").write_text("import torch\nclass Own(torch.nn.Linear):\n    pass\n")
    (beside / "train.py").write_text(_TASK + "\nimport net\ntune(model=net.Own(4, 1))\n")
    assert _result(_run(elsewhere, [str(beside / "train.py")]))["model"] == "net"


def test_guarded_script_under_spawn_gets_working_workers(short_folder: Path) -> None:
    """Under spawn a guarded main file is imported by the child, so that loader workers find its dataset."""
    start = "\nif __name__ == '__main__':\n    multiprocessing.set_start_method('spawn')\n    tune(workers='spawn')\n"
    (short_folder / "train.py").write_text("open('runs', 'a').write('x')\n" + _TASK + start)
    result = _result(_run(short_folder, ["train.py"]))
    assert result["rows"] == 10
    assert result["dataset"] == "__mp_main__"
    assert (short_folder / "runs").read_text() == "xxx"  # the caller, the child, the worker


def test_guarded_script_that_tunes_outside_of_its_guard_is_told(short_folder: Path) -> None:
    """A main file that would tune again while it is imported gets one clear error that names the guard."""
    start = "\nmultiprocessing.set_start_method('spawn', force=True)\ntune()\nif __name__ == '__main__':\n    pass\n"
    (short_folder / "train.py").write_text("open('runs', 'a').write('x')\n" + _TASK + start)
    done = _run(short_folder, ["train.py"])
    assert done.returncode != 0
    assert 'Put the call below `if __name__ == "__main__":`.' in done.stderr
    assert (short_folder / "runs").read_text() == "xx"
    assert _left(short_folder) == []


def test_workers_of_an_unguarded_script_are_refused_under_spawn(short_folder: Path) -> None:
    """Tuning works, and the facts say that workers would run the script again, naming the guard.

    Reports: pytorch/pytorch#46648, pytorch/pytorch#5858.
    """
    script = """
import multiprocessing
import torch
from autotune.hardware import Hardware, Limits
from autotune.sandbox import Sandbox
from autotune.task import Task
multiprocessing.set_start_method("spawn")
data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
task = Task(torch.nn.Linear(8, 2), data, loss_fn=torch.nn.functional.cross_entropy, device="cpu")
limits = Limits(ram_bytes=2**32, shm_bytes=None, open_files=None)
with Sandbox(task, Hardware.detect(), limits) as sandbox:
    print("RESULT", __import__("json").dumps(sandbox.describe().workers_refused))
"""
    (short_folder / "train.py").write_text(script)
    refused = _result(_run(short_folder, ["train.py"], TORCHINDUCTOR_CACHE_DIR=str(short_folder / "cache")))
    assert "would run train.py again" in refused
    assert 'if __name__ == "__main__":' in refused
