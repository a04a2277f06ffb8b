"""What an optimizer is made of."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import TaskError
from autotune.task import OptimizerSpec


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
