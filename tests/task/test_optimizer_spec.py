"""What an optimizer is made of."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import TaskError
from autotune.task import OptimizerSpec
from autotune.task.optimizer_spec import SCALED_MARK


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


class Own(torch.optim.SGD):
    """An optimizer whose constructor passes everything on."""

    def __init__(self, params: Any, own: int = 3, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)


def test_none_is_adamw_and_said_to_be_assumed() -> None:
    """One group of the trainable parameters."""
    model = net()
    model[0].bias.requires_grad_(False)
    spec = OptimizerSpec.of(None, model)
    assert spec.assumed
    assert spec.cls is torch.optim.AdamW
    assert spec.name == "torch.optim.AdamW"
    assert spec.constructor_kwargs() == {"lr": 1e-3}
    (group,) = spec.param_groups(model)
    assert [id(parameter) for parameter in group["params"]] == [id(p) for p in model.parameters() if p.requires_grad]


def test_an_instance_is_read_group_by_group() -> None:
    """Names, options and initial_lr are kept, for any copy of the model."""
    model, other = net(), net()
    groups = [
        {"params": model[0].parameters(), "lr": 0.1, "initial_lr": 0.4},
        {"params": [model[2].bias], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9, weight_decay=0.01)
    spec = OptimizerSpec.of(optimizer, model)
    assert not spec.assumed
    assert [names for names, _ in spec.groups] == [("0.weight", "0.bias"), ("2.bias",)]
    first, second = spec.param_groups(other)
    assert first["params"][0] is other[0].weight
    assert second["params"][0] is other[2].bias
    assert (first["lr"], first["initial_lr"], first["weight_decay"]) == (0.1, 0.4, 0.01)
    assert (second["lr"], second["weight_decay"], second["momentum"]) == (0.2, 0.0, 0.9)


@pytest.mark.parametrize("cls", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam, Own])
def test_an_equal_optimizer_can_be_constructed(cls: Any) -> None:
    """Constructor arguments and groups together give the same options again."""
    model = net()
    optimizer = cls(model.parameters(), lr=0.03, weight_decay=0.1)
    spec = OptimizerSpec.of(optimizer, model)
    again = spec.cls(spec.param_groups(model), **spec.constructor_kwargs())
    for old, new in zip(optimizer.param_groups, again.param_groups, strict=True):
        assert {key: value for key, value in old.items() if key != "params"} == {
            key: value for key, value in new.items() if key != "params"
        }


def test_tensor_options_are_copies() -> None:
    """Changing what is built does not change the user's learning rate."""
    model = net()
    lr = torch.tensor(0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, capturable=True, foreach=False)
    spec = OptimizerSpec.of(optimizer, model)
    spec.param_groups(model)[0]["lr"].mul_(7)
    spec.constructor_kwargs()["lr"].mul_(7)
    assert lr.item() == pytest.approx(0.1)
    assert spec.groups[0][1]["lr"].item() == pytest.approx(0.1)


@pytest.mark.parametrize(
    "factory",
    [lambda params: torch.optim.SGD(params, lr=0.1), functools.partial(torch.optim.SGD, lr=0.1), torch.optim.SGD],
)
def test_a_callable_is_called_only_to_resolve(factory: Any) -> None:
    """It gets a list it may read twice; resolving again changes nothing."""
    model = net()
    spec = OptimizerSpec.of(factory, net)
    assert spec.cls is None
    assert spec.name is None
    resolved = spec.resolve(model)
    assert resolved.name == "torch.optim.SGD"
    assert resolved.factory is factory
    assert resolved.groups[0][0] == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert resolved.resolve(model) is resolved


def test_tied_parameters_have_one_name() -> None:
    """Identity decides, not position."""
    model = net()
    model[0].bias = nn.Parameter(torch.zeros(4))
    tied = nn.ModuleDict({"a": model[0], "b": model[0]})
    spec = OptimizerSpec.of(torch.optim.SGD(tied.parameters(), lr=0.1), tied)
    assert spec.groups[0][0] == ("a.weight", "a.bias")


@pytest.mark.parametrize(
    ("optimizer", "model", "named"),
    [
        (torch.optim.SGD(net().parameters()), net(), "model does not have"),
        (torch.optim.SGD(net().parameters()), net, "callable"),
        (0.1, net(), "not float"),
    ],
)
def test_what_cannot_be_is_refused(optimizer: Any, model: Any, named: str) -> None:
    """Another model's optimizer, an instance beside a factory, a number."""
    with pytest.raises(TaskError, match=named):
        OptimizerSpec.of(optimizer, model)


@pytest.mark.parametrize(
    ("factory", "named"),
    [
        (lambda params: None, "NoneType"),
        (lambda params: 1 / 0, "ZeroDivisionError"),
        (lambda: None, "TypeError"),
        (lambda params: torch.optim.SGD(net().parameters()), "model does not have"),
    ],
)
def test_a_callable_that_fails_is_named(factory: Any, named: str) -> None:
    """The cause is what it raised or returned."""
    with pytest.raises(TaskError, match=named):
        OptimizerSpec.of(factory, net()).resolve(net())


def test_a_model_that_lacks_a_parameter_is_named() -> None:
    """A spec is not applied to half of a model."""
    model = net()
    spec = OptimizerSpec.of(torch.optim.SGD(model.parameters()), model)
    with pytest.raises(TaskError, match=r"0\.weight"):
        spec.param_groups(nn.Sequential(nn.ReLU(), nn.Linear(3, 4)))


class Secretive(torch.optim.AdamW):
    """Keeps an argument outside its groups."""

    def __init__(self, params: Any, lr: float = 0.1, secret: float = 1.0) -> None:
        super().__init__(params, lr=lr)
        self.secret = secret


class Scaled(torch.optim.SGD):
    """Needs an argument that it keeps nowhere, and names the others in its own way."""

    def __init__(this, weights: Any, factor: float) -> None:
        super().__init__(weights, lr=factor)


def test_an_argument_kept_elsewhere_asks_for_a_callable() -> None:
    """Built again from its groups it would be another optimizer."""
    model = net()
    with pytest.raises(TaskError, match=r"'secret' of Secretive.*optimizer=lambda params: Secretive\(params, secret"):
        OptimizerSpec.of(Secretive(model.parameters(), secret=5.0), model)
    with pytest.raises(TaskError, match="'factor' of Scaled"):
        OptimizerSpec.of(Scaled(model.parameters(), 0.1), model)


def test_an_argument_at_its_default_is_no_secret() -> None:
    """Nor is one that is unknown but has a default."""
    model = net()
    assert OptimizerSpec.of(Secretive(model.parameters()), model).unknown_argument is None
    assert OptimizerSpec.of(Own(model.parameters(), own=4, lr=0.1), model).unknown_argument is None


def test_a_callable_may_keep_its_secret() -> None:
    """It makes the optimizer itself; the spec only remembers that nothing else can."""
    model = net()
    spec = OptimizerSpec.of(lambda params: Secretive(params, secret=5.0), model).resolve(model)
    assert spec.unknown_argument == "secret"
    assert spec.factory is not None


@pytest.mark.parametrize("name", ["Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon"])
def test_torchs_own_optimizers_have_no_secrets(name: str) -> None:
    """All their arguments are in their defaults."""
    layer = nn.Linear(3, 4, bias=False)
    optimizer = getattr(torch.optim, name)(layer.parameters(), lr=0.1)
    assert OptimizerSpec.of(optimizer, layer).unknown_argument is None


@pytest.mark.parametrize("name", ["NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"])
def test_torchs_other_optimizers_have_no_secrets_either(name: str) -> None:
    """All their arguments are in their defaults."""
    model = net()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    assert OptimizerSpec.of(optimizer, model).unknown_argument is None


def test_closures_are_refused_when_handed_over() -> None:
    """An instance at once, a callable when it is called."""
    model = net()
    with pytest.raises(TaskError, match="LBFGS needs a closure"):
        OptimizerSpec.of(torch.optim.LBFGS(model.parameters()), model)
    with pytest.raises(TaskError, match="LBFGS needs a closure"):
        OptimizerSpec.of(torch.optim.LBFGS, model).resolve(model)


def test_parameters_of_a_loss_are_told_where_to_go() -> None:
    """Into the model; a callable would not help."""
    model = net()
    stray = nn.Parameter(torch.ones(4))
    with pytest.raises(TaskError, match="make the loss a submodule"):
        OptimizerSpec.of(torch.optim.SGD([*model.parameters(), stray], lr=0.1), model)


def test_the_mark_of_a_scaled_rate_is_no_option() -> None:
    """It says something about one optimizer's rates, not how to build another."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0][SCALED_MARK] = "x"
    assert SCALED_MARK not in OptimizerSpec.of(optimizer, model).groups[0][1]
