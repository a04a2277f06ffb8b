"""A whole call from the programs people write: no main guard, standard input, a model in a file beside the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune import Settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
    def forward(self, rows):
        return self.layer(rows)
"""

DATA = """
import torch

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs = torch.randn(2000, 8)
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        return self.inputs[index], int(self.inputs[index, 0] > 0)
"""

CALL = """
import json
from autotune import autotune

open("runs", "a").write("x")
tuned = autotune(
    Net(),
    Rows(),
    loss_fn=lambda output, target: torch.nn.functional.cross_entropy(output, target),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    device="cpu",
    time_budget_s=6,
)
model = tuned.prepare(Net())
step = tuned.train_step(model, tuned.optimizer(model))
assert float(step(next(iter(tuned.dataloader())))) > 0
print(json.dumps(tuned.settings.to_json()))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of its own, with a short path, that may hold nothing new afterwards but what the script wrote."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        path = Path(name)
        (path / "tmp").mkdir()
        (path / "elsewhere").mkdir()
        yield path
        assert list((path / "tmp").iterdir()) == []


def printed_settings(folder: Path, *arguments: str, text: str | None = None, cwd: Path | None = None) -> Settings:
    """Runs ``python *arguments`` and reads what it printed: the settings and nothing else."""
    search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    places = {
        "PYTHONPATH": search_path,
        "TMPDIR": str(folder / "tmp"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        cwd=cwd or folder,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return Settings.from_json(printed)


def test_script_without_a_guard(folder: Path) -> None:
    """A plain script with everything at its top level tunes, trains, and runs once."""
    (folder / "train.py").write_text(MODEL + DATA + CALL)
    assert printed_settings(folder, "train.py").batch_size
    assert (folder / "runs").read_text() == "x"


def test_script_from_standard_input(folder: Path) -> None:
    """Classes and lambdas of a program that is no file work as well."""
    assert printed_settings(folder, "-", text=MODEL + DATA + CALL).batch_size
    assert (folder / "runs").read_text() == "x"


def test_script_started_from_another_folder(folder: Path) -> None:
    """A guarded script finds the module beside it wherever it is started from."""
    (folder / "net.py").write_text(MODEL)
    body = "".join(f"    {line}\n" for line in CALL.splitlines())
    (folder / "train.py").write_text(f"from net import Net\n{DATA}\nif __name__ == '__main__':\n{body}")
    elsewhere = folder / "elsewhere"
    assert printed_settings(folder, str(folder / "train.py"), cwd=elsewhere).batch_size
    assert (elsewhere / "runs").read_text() == "x"
    assert [path.name for path in elsewhere.iterdir()] == ["runs"]
