"""One hash of what a task is."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from autotune.task import Task, task_fingerprint


class Functional(nn.Module):
    """A net whose activation is not a module."""

    def __init__(self, activation: Any, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> Any:
        return self.activation(self.layer(x))


class Relu(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(super().forward(x))


class Gelu(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(super().forward(x))


class Images(Dataset[Any]):
    def __init__(self, size: int = 8, transform: Any = None) -> None:
        self.size = size
        self.transform = transform
        self.cache: dict[int, Any] = {}
        self._reads = 0

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        self._reads += 1
        self.cache[index] = self
        return torch.zeros(4), 0


class Crop:
    def __init__(self, size: int) -> None:
        self.size = size


def data() -> TensorDataset:
    return TensorDataset(torch.rand(12, 4), torch.zeros(12, dtype=torch.int64))


def net(activation: Any = nn.ReLU, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, 2))


def fingerprint(model: nn.Module | None = None, dataset: Any = None, batch: Any = None, **options: Any) -> str:
    model = net() if model is None else model
    dataset = data() if dataset is None else dataset
    batch = [torch.zeros(3, 4), torch.zeros(3)] if batch is None else batch
    return task_fingerprint(Task(model, dataset, **options), model, batch)


def test_weights_rows_rates_and_random_states_do_not_matter() -> None:
    """Another seed, a bigger batch and another learning rate are the same task."""
    first = fingerprint()
    torch.rand(3)
    assert first == fingerprint(batch=[torch.zeros(5, 4), torch.zeros(5)])
    assert first == fingerprint(optimizer=lambda params: torch.optim.AdamW(params, lr=0.7))
    assert first.startswith("sha256:")
    assert len(first) == 71


def test_a_script_is_the_same_task_when_it_runs_and_when_it_is_imported() -> None:
    """Classes and functions of ``__main__`` and of a module with the same code are the same."""
    code = (
        "import torch\n"
        "class Rows(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, index): return torch.zeros(4), 0\n"
        "def loss(output, target): return output.sum()\n"
    )
    seen = []
    for module in ("__main__", "train"):
        names: dict[str, Any] = {"__name__": module}
        exec(code, names)
        seen.append(fingerprint(dataset=names["Rows"](), loss_fn=names["loss"]))
    assert seen[0] == seen[1]


def test_what_a_dataset_factory_makes_counts_and_not_the_factory() -> None:
    """A config tuned with a factory is for the same task when it is loaded with the dataset itself."""
    model, batch = net(), [torch.zeros(3, 4), torch.zeros(3)]
    by_factory = Task(model, lambda: Images(8))
    made = task_fingerprint(by_factory, model, batch, data=by_factory.data.resolve())
    assert made == fingerprint(model, Images(8))
    assert made != fingerprint(model, Images(9))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": net(nn.ReLU)}, {"model": net(nn.GELU)}),
        ({"model": net(width=8)}, {"model": net(width=9)}),
        ({"model": Functional(functional.relu)}, {"model": Functional(functional.gelu)}),
        ({"model": Functional(torch.relu)}, {"model": Functional(torch.tanh)}),
        ({"model": nn.Sequential(Relu(4, 2))}, {"model": nn.Sequential(Gelu(4, 2))}),
        (
            {"model": nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1))},
            {"model": nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.2))},
        ),
        ({"dataset": Images(8)}, {"dataset": Images(9)}),
        ({"dataset": Images(transform=Crop(3))}, {"dataset": Images(transform=Crop(4))}),
        ({"dataset": Images(transform=lambda x: x + 1)}, {"dataset": Images(transform=lambda x: x + 2)}),
        (
            {"dataset": Images(transform=nn.Sequential(nn.ReLU()))},
            {"dataset": Images(transform=nn.Sequential(nn.GELU()))},
        ),
        ({"dataset": data()}, {"dataset": Images()}),
        ({"dataset": lambda: Images(8)}, {"dataset": lambda: Images(9)}),
        ({"collate_fn": lambda samples: samples[0]}, {"collate_fn": lambda samples: samples[1]}),
        ({"batch": [torch.zeros(3, 4)]}, {"batch": [torch.zeros(3, 5)]}),
        ({"loss_fn": functional.cross_entropy}, {"loss_fn": functional.nll_loss}),
        ({"loss_fn": nn.CrossEntropyLoss(label_smoothing=0.1)}, {"loss_fn": nn.CrossEntropyLoss()}),
        (
            {"loss_fn": functools.partial(functional.cross_entropy, label_smoothing=0.1)},
            {"loss_fn": functools.partial(functional.cross_entropy, label_smoothing=0.2)},
        ),
        ({"optimizer": torch.optim.SGD}, {"optimizer": torch.optim.Adam}),
    ],
)
def test_what_changes_the_work_changes_the_hash(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Activation, width, dataset, transform, collate, shapes, loss and optimizer class all count."""
    assert fingerprint(**one) == fingerprint(**one)
    assert fingerprint(**one) != fingerprint(**other)


def test_reading_the_data_does_not_change_the_hash() -> None:
    """Caches and private counters of a dataset are no part of what it is."""
    dataset = Images()
    before = fingerprint(dataset=dataset)
    dataset[3]
    assert fingerprint(dataset=dataset) == before


def test_freezing_a_layer_changes_the_hash() -> None:
    """Fewer gradients are less work."""
    model = net()
    model[0].requires_grad_(False)
    assert fingerprint(model) != fingerprint(net())


def test_taking_a_hash_draws_no_random_number() -> None:
    """An optimizer callable that does is undone."""

    def make(params: Any) -> torch.optim.Optimizer:
        torch.rand(3)
        return torch.optim.SGD(params)

    model, dataset = net(), data()
    state = torch.get_rng_state()
    fingerprint(model, dataset, optimizer=make)
    assert torch.equal(torch.get_rng_state(), state)


_PROGRAM = """
import pathlib, sys
import cloudpickle, torch
from torch import nn
from torch.utils.data import Dataset
from autotune.task import Task, task_fingerprint

class Net(nn.Module):
    KINDS = {"a", "b", "c"}
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        return self.layer(x) if "x" in {"x", "y", "z", "w"} else x

class Data(Dataset):
    def __init__(self):
        self.kinds = {"p", "q", "r"}
        self.transform = lambda x: x * 2
    def __len__(self):
        return 7
    def __getitem__(self, index):
        return self.transform(torch.zeros(4)), 0

path = pathlib.Path(sys.argv[1])
if not path.exists():
    path.write_bytes(cloudpickle.dumps(Task(Net(), Data(), loss_fn=lambda output, target: output.mean())))
    task = Task(Net(), Data(), loss_fn=lambda output, target: output.mean())
else:
    del Net, Data
    task = cloudpickle.loads(path.read_bytes())
print(task_fingerprint(task, task.build_model(), [torch.zeros(2, 4), torch.zeros(2)]))
"""


def test_the_hash_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Also for classes of a main program that travelled there, and whatever the seed of python's own hashes."""
    root = str(Path(__file__).parents[2])
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root}
        command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "task")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
        found.append(done.stdout.strip())
    assert found[0] == found[1]
    assert found[0].startswith("sha256:")
