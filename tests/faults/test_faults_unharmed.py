"""The user's model, optimizer and folder are as they were."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autotune.build.loader import build_loader
from autotune.errors import DoesNotFitError, TaskError
from autotune.sandbox.snapshot import Snapshot
from autotune.settings import Settings
from autotune.task import LoaderParts
from tests.faults.small_task import Net, full_above, largest, rows


class Counting(Net):
    """Counts its forward passes in a buffer."""

    def __init__(self, limit: int) -> None:
        super().__init__(full_above(limit))
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(x)


def test_a_buffer_that_forward_increments_is_put_back() -> None:
    """The counter, and the very tensor that holds it, are what they were; also where the search raises.

    Report: Lightning-AI/pytorch-lightning#3260.
    """
    for limit in (37, 0):
        model = Counting(limit)
        model.passes += 3
        counter = model.passes
        if limit:
            assert largest(model).batch_size == limit
        else:
            with pytest.raises(DoesNotFitError):
                largest(model)
        assert model.passes is counter
        assert int(model.passes) == 3


def test_every_submodule_keeps_its_mode() -> None:
    """A model in eval mode comes back in eval mode, a half-frozen one half-frozen.

    Report: Lightning-AI/pytorch-lightning#18813.
    """
    for frozen in ([], [0]):
        model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Dropout(), nn.Linear(8, 2))
        model.train(bool(frozen))
        for index in frozen:
            model[index].eval()
        before = [module.training for module in model.modules()]
        largest(model, max_batch_size=16)
        assert [module.training for module in model.modules()] == before


def test_moments_and_steps_of_an_optimizer_are_put_back() -> None:
    """Adam after three steps: its whole state, options included, is equal before and after.

    Report: fastai/fastai#3185.
    """
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    before = {name: value.clone() for name, value in _flat(optimizer.state_dict()).items()}
    largest(model, optimizer=optimizer, max_batch_size=16)
    after = _flat(optimizer.state_dict())
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def _flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    options = {f"{k}": torch.tensor(v) for k, v in state["param_groups"][0].items() if isinstance(v, float)}
    moments = {f"{n}.{k}": value for n, entry in state["state"].items() for k, value in entry.items()}
    return {**options, **moments}


def test_a_model_with_weight_norm_is_searched() -> None:
    """The old weight_norm leaves a tensor after a forward pass that copy.deepcopy refuses: it does no harm here.

    Report: pytorch/pytorch#102981.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = nn.utils.weight_norm(nn.Linear(8, 2))
    model(torch.randn(4, 8))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert largest(model, max_batch_size=16).batch_size == 16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_lazy_layers_are_named() -> None:
    """Their shapes are not known before the first pass: the error says which, and what to do.

    Report: pytorch/pytorch#65051.
    """
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(TaskError, match=r"lazy layers .*: 0, 2\. Run it on one batch first"):
        largest(model)
    assert isinstance(model[0].weight, nn.UninitializedParameter)
    model(torch.randn(4, 8))
    assert largest(model, max_batch_size=16).batch_size == 16


def test_a_search_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory holds what it held.

    Report: Lightning-AI/pytorch-lightning#15603.
    """
    (tmp_path / "checkpoint.pt").write_bytes(b"mine")
    monkeypatch.chdir(tmp_path)
    largest(Net(full_above(37)))
    assert os.listdir(tmp_path) == ["checkpoint.pt"]
    assert (tmp_path / "checkpoint.pt").read_bytes() == b"mine"


def test_the_first_epoch_after_tuning_is_whole() -> None:
    """The loader that is handed back covers the dataset, again and again, whatever a trial's limits were.

    Reports: Lightning-AI/pytorch-lightning#18394, Lightning-AI/pytorch-lightning#15603.
    """
    data = rows(70)
    largest(Net(), data)
    loader = build_loader(LoaderParts.of(data), Settings(batch_size=16), has_batch_norm=False)
    assert [sum(len(x) for x, _ in loader) for _ in range(2)] == [70, 70]


@pytest.mark.gpu
def test_the_copy_to_go_back_to_lies_in_host_memory() -> None:
    """A snapshot of a model on the device takes no memory there.

    Report: pytorch/pytorch#25892.
    """
    model = nn.Linear(2048, 2048).to(torch.accelerator.current_accelerator())
    before = torch.accelerator.memory_allocated()
    snapshot = Snapshot([model], [], [])
    assert torch.accelerator.memory_allocated() == before
    states = [slot.state for module in snapshot._modules for slot in module._slots if slot.state is not None]
    assert {state._copy.device.type for state in states} == {"cpu"}
