"""Models that their own forward pass changes are lent for every trial as they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe, Rejected
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench, live
from autotune.trial.models import ModelPool


class _Changing(nn.Module):
    """A layer, and buffers that the forward pass may change in other ways than in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(0))
        self.register_buffer("average", None)
        self.register_buffer("once", torch.ones(4))
        self.register_buffer("wide", torch.ones(1).expand(4))
        self.offset: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = torch.cat([self.seen, x.detach().mean()[None]])
        self.average = x.detach().mean(0)
        del self.once
        self.wide = self.wide * 2
        return self.layer(x)


class _Growing(_Changing):
    """Adds a buffer and a parameter as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.offset is None:
            self.offset = nn.Parameter(torch.zeros(2))
            self.register_buffer("late", torch.ones(len(x), 1))
        return super().forward(x) + self.offset


def _pool(make: Callable[[], nn.Module], *, copies: bool) -> ModelPool:
    data = TensorDataset(torch.randn(8, 4))
    return ModelPool(Task(make(), data), (lambda: Task(make(), data)) if copies else None)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("make", [_Changing, _Growing])
def test_a_model_comes_as_it_was_whatever_its_forward_pass_did(make: Callable[[], nn.Module], copies: bool) -> None:
    """Buffers that grow, appear, vanish or are expanded must not fail the second trial."""
    pool = _pool(make, copies=copies)
    for _ in range(3):
        model: Any = pool.take(Settings())
        assert model.seen.shape == (0,)
        assert model.average is None
        assert torch.equal(model.once, torch.ones(4))
        assert torch.equal(model.wide, torch.ones(4))
        model(torch.randn(3, 4)).sum().backward()
        pool.give_back(model, Settings())


def test_a_model_that_made_its_own_parameters_is_replaced_by_a_new_copy() -> None:
    """The optimizer of the next trial would hold a parameter that the user's own cannot."""
    pool = _pool(_Growing, copies=True)
    for _ in range(2):
        model: Any = pool.take(Settings())
        assert model.offset is None
        assert "late" not in dict(model.named_buffers())
        model(torch.randn(3, 4))
        pool.give_back(model, Settings())


def test_tied_and_expanded_tensors_are_put_back_in_place() -> None:
    """What shares memory goes on sharing it."""

    def make() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        model.register_buffer("wide", torch.ones(1).expand(4))
        return model

    pool = _pool(make, copies=False)
    model: Any = pool.take(Settings())
    weight, before = model[0].weight, model[0].weight.detach().clone()
    with torch.no_grad():
        weight += 1.0
    pool.give_back(model, Settings())
    again: Any = pool.take(Settings())
    assert again[0].weight is again[1].weight is weight
    assert torch.equal(weight, before)
    assert again.wide.stride() == (0,)


class _Untouched(nn.Module):
    """Fails where the test says so."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise ValueError("not now")
        return self.layer(x)


@pytest.mark.parametrize(
    ("kind", "knobs"),
    [("numerics", {}), ("joint", {"optimizer_implementation": "fused"}), ("joint", {"num_workers": 1})],
)
def test_the_only_model_is_not_lost_where_something_fails(monkeypatch: Any, kind: Any, knobs: dict[str, Any]) -> None:
    """In the caller's own process, one setting that fails anywhere must not fail all that come after it."""
    hardware, model = Hardware.detect(device="cpu"), _Untouched()
    data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    task = Task(model, data, loss_fn=nn.CrossEntropyLoss(), optimizer=torch.optim.RMSprop, device="cpu")
    bench = Bench(task, hardware, Limits.of(hardware))
    bench.describe()
    model.fails = kind == "numerics"
    with monkeypatch.context() as patch:
        if knobs.get("num_workers"):
            patch.setattr(live, "build_loader", _no_loader)
        failed = bench.run(Probe(kind=kind, settings=Settings().replace(**knobs), window_s=0.01))
    assert isinstance(failed, Rejected)
    model.fails = False
    after = bench.run(Probe(kind="joint", settings=Settings(), window_s=0.01))
    bench.close()
    assert isinstance(after, Measured), after


def _no_loader(*_: Any, **__: Any) -> None:
    raise OSError("no loader today")
