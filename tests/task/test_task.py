"""One training task, checked."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.errors import SettingsError, TaskError
from autotune.task import Task


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def data() -> TensorDataset:
    return TensorDataset(torch.rand(12, 4), torch.zeros(12, dtype=torch.int64))


def frozen() -> nn.Module:
    return net().requires_grad_(False)


def scale_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.mean()


def test_what_was_handed_over_is_brought_to_one_form() -> None:
    """Defaults are None or said to be assumed; the model is the user's own."""
    model = net()
    task = Task(model, data())
    assert task.build_model() is model
    assert task.data.samples == 12
    assert task.optimizer.assumed
    assert task.base_batch_size is None
    assert task.max_grad_norm is None
    assert task.device is None
    assert task.name == "Sequential"


def test_numbers_become_plain_numbers() -> None:
    """numpy integers and ints for floats are accepted, and stored as what they mean."""
    numpy = pytest.importorskip("numpy")
    task = Task(net(), data(), base_batch_size=numpy.int64(16), max_grad_norm=1, device=torch.device("cpu"), name="x")
    assert type(task.base_batch_size) is int
    assert type(task.max_grad_norm) is float
    assert task.device == "cpu"
    assert task.name == "x"


def test_factories_are_called_only_when_needed() -> None:
    """A model factory gives a new model each time."""
    calls = []

    def make() -> nn.Module:
        calls.append(1)
        return net()

    task = Task(make, data)
    assert calls == []
    assert task.name == "make"
    assert task.build_model() is not task.build_model()
    assert calls == [1, 1]


def test_a_task_travels_as_one_pickle() -> None:
    """All parts arrive, the loader's frozen ones too."""
    model = net()
    loader = DataLoader(data(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
    task = Task(model, loader, loss_fn=scale_loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    copy = pickle.loads(pickle.dumps(task))
    assert copy.optimizer == task.optimizer
    assert copy.data.batch_size == 4
    assert copy.data.generator.initial_seed() == 3
    assert torch.equal(copy.build_model()[0].weight, model[0].weight)


def test_nothing_of_the_users_is_changed() -> None:
    """Weights, gradients, modes and random states stay as they were."""
    model, dataset = net().eval(), data()
    optimizer = torch.optim.Adam(model.parameters())
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    state, options = torch.get_rng_state(), dict(optimizer.param_groups[0])
    Task(model, DataLoader(dataset, shuffle=True), optimizer=optimizer, loss_fn=nn.CrossEntropyLoss())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert dict(optimizer.param_groups[0]) == options
    assert not model.training


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (3, "not int"),
        ({"weights": 1}, "not dict"),
        (frozen(), "requires gradients"),
        (nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2)), "lazy layers .*0, 2"),
        (nn.Linear(2, 2, device="meta"), "meta"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(model: Any, named: str) -> None:
    """Whether it is handed over or made by a factory."""
    with pytest.raises(TaskError, match=named):
        Task(model, data())
    if isinstance(model, nn.Module):
        with pytest.raises(TaskError, match=named):
            Task(lambda: model, data()).build_model()


def test_a_compiled_model_is_refused_with_the_module_to_pass() -> None:
    """Whether to compile is tuned; nothing is compiled by asking."""
    with pytest.raises(TaskError, match="_orig_mod"):
        Task(torch.compile(net()), data())


def test_a_model_compiled_in_place_is_refused_by_name() -> None:
    """Its copy in the isolated process would be eager, and so would be what is called the baseline."""
    model = net()
    model[0].compile(backend="eager")
    with pytest.raises(TaskError, match=r"model\.0 is already compiled"):
        Task(model, data())


@pytest.mark.parametrize(
    ("factory", "named"),
    [(lambda: 3, "returned int"), (lambda: 1 / 0, "ZeroDivisionError"), (lambda needed: needed, "TypeError")],
)
def test_a_model_factory_that_fails_is_named(factory: Any, named: str) -> None:
    """The cause is what it raised or returned."""
    with pytest.raises(TaskError, match=named):
        Task(factory, data()).build_model()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"base_batch_size": 0}, SettingsError),
        ({"base_batch_size": -4}, SettingsError),
        ({"base_batch_size": True}, SettingsError),
        ({"base_batch_size": 32.0}, SettingsError),
        ({"base_batch_size": "32"}, SettingsError),
        ({"max_grad_norm": 0}, SettingsError),
        ({"max_grad_norm": math.inf}, SettingsError),
        ({"max_grad_norm": math.nan}, SettingsError),
        ({"max_grad_norm": True}, SettingsError),
        ({"max_grad_norm": "1"}, SettingsError),
        ({"device": "gpu of mine"}, SettingsError),
        ({"device": 1.5}, SettingsError),
        ({"loss_fn": 3}, TaskError),
        ({"loss_fn": nn.CrossEntropyLoss}, TaskError),
        ({"training_step": "step"}, TaskError),
        ({"loss_fn": scale_loss, "training_step": scale_loss}, TaskError),
        ({"optimizer": 0.1}, TaskError),
        ({"collate_fn": 3}, TaskError),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], error: type[Exception]) -> None:
    """Each message starts with the argument it is about."""
    with pytest.raises(error, match=next(iter(arguments))):
        Task(net(), data(), **arguments)


def test_numpys_integers_are_batch_sizes() -> None:
    """And become plain ones."""
    task = Task(nn.Linear(2, 2), [1, 2], base_batch_size=np.int64(16))
    assert type(task.base_batch_size) is int


def test_an_optimizer_with_a_closure_is_refused_at_once() -> None:
    """Before anything is started."""
    model = nn.Linear(2, 2)
    with pytest.raises(TaskError, match="needs a closure"):
        Task(model, [1, 2], optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("length", [10**20, -1, RuntimeError("index not built")])
def test_a_broken_length_is_one_clear_error(length: Any) -> None:
    """Whatever ``__len__`` raises, or makes ``len`` raise."""

    class Broken(list[Any]):
        def __len__(self) -> int:
            if isinstance(length, Exception):
                raise length
            return length

    with pytest.raises(TaskError, match=r"Broken raised .*Error: .*__len__ must return"):
        Task(nn.Linear(2, 2), Broken())
