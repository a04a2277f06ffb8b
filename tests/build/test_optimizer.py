"""A fresh optimizer like the user's, and scaled learning rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CyclicLR,
    LambdaLR,
    LinearLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from autotune.build.optimizer import apply_to, build_optimizer, implementation_of
from autotune.errors import SettingsError, TaskError
from autotune.settings import Settings
from autotune.task import OptimizerSpec

CLASSES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}),
    (Adam, {"lr": 0.01, "betas": (0.8, 0.95), "amsgrad": True}),
    (AdamW, {"lr": 0.01, "weight_decay": 0.3}),
    (Adagrad, {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.2}),
    (RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    (NAdam, {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
]


class Lion(Optimizer):
    """A user's own optimizer, with a constructor and a step of its own."""

    def __init__(self, params: Any, lr: float = 0.01, *, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "made_of": "sign"})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


class Passing(AdamW):
    """A subclass that passes its keyword arguments on."""

    def __init__(self, params: Any, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)


class Demanding(Optimizer):
    """A class that needs more than its options tell."""

    def __init__(self, params: Any, model: nn.Module) -> None:
        super().__init__(params, {"lr": 0.1})


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def fresh(optimizer: Any, model: nn.Module, settings: Settings | None = None, **options: Any) -> Optimizer:
    return build_optimizer(OptimizerSpec.of(optimizer, model), model, settings or Settings(), **options)


def train(model: nn.Module, optimizer: Optimizer, steps: int = 4) -> torch.Tensor:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(("cls", "options"), CLASSES)
def test_a_fresh_optimizer_trains_like_the_users(cls: type[Optimizer], options: dict[str, Any]) -> None:
    """Every option survives the way through the constructor, AdamW's extra default included, and no state does."""
    model, other = net(), net()
    users = cls(model.parameters(), **options)
    built = fresh(users, model)
    assert type(built) is cls
    assert built is not users
    assert built.param_groups[0] == users.param_groups[0]
    expected = train(other, cls(other.parameters(), **options))
    torch.testing.assert_close(train(model, built), expected, rtol=0, atol=0)


@pytest.mark.parametrize("cls", [SGD, Adam, AdamW, Adagrad])
@pytest.mark.parametrize("implementation", ["for-loop", "foreach", "fused"])
def test_each_implementation_gives_the_same_training(cls: type[Optimizer], implementation: Any) -> None:
    """The implementation that was asked for is used, in every group, with equal results."""
    plain, model = net(), net()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters(), "foreach": True}]
    users = cls(groups, lr=0.01)
    built = fresh(users, model, Settings(optimizer_implementation=implementation))
    assert implementation_of(built) == implementation
    for group in built.param_groups:
        assert (group["fused"], group["foreach"]) == (implementation == "fused", implementation == "foreach")
    expected = train(
        plain, cls([{"params": plain[0].parameters(), "lr": 0.05}, {"params": plain[2].parameters()}], lr=0.01)
    )
    torch.testing.assert_close(train(model, built), expected, rtol=1e-5, atol=1e-6)
    assert train(net(), users) is not None


@pytest.mark.parametrize("cls", [RMSprop, NAdam, Lion])
def test_an_implementation_that_is_not_there_is_an_error(cls: type[Optimizer]) -> None:
    """RMSprop and NAdam have no fused step on a CPU, a user's class has none at all (deepmodeling/deepmd-kit#4667)."""
    model = net()
    with pytest.raises(SettingsError, match="fused"):
        fresh(cls(model.parameters(), lr=0.01), model, Settings(optimizer_implementation="fused"))


def test_an_implementation_that_the_options_forbid_is_an_error() -> None:
    """torch refuses fused beside differentiable: the reason is passed on."""
    model = net()
    users = Adam(model.parameters(), lr=0.01, differentiable=True)
    with pytest.raises(SettingsError, match="differentiable"):
        fresh(users, model, Settings(optimizer_implementation="fused"))


def test_none_keeps_the_implementation_of_the_user() -> None:
    """Without a wish the user's own flag stays."""
    model = net()
    assert implementation_of(fresh(SGD(model.parameters(), lr=0.1, fused=True), model)) == "fused"
    assert implementation_of(fresh(SGD(model.parameters(), lr=0.1), model)) is None
    assert implementation_of(fresh(SGD(model.parameters(), lr=0.1, foreach=False), model)) == "for-loop"


def test_every_group_keeps_its_own_learning_rate_and_options() -> None:
    """Per-group rates are scaled by one factor, other options stay, parameters stay in their groups."""
    model = net()
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.2, "weight_decay": 0.0, "name": "stem"},
        {"params": list(model[2].parameters())},
    ]
    built = fresh(AdamW(groups, lr=0.01, weight_decay=0.5), model, lr_factor=4.0)
    first, second = built.param_groups
    assert [group["lr"] for group in built.param_groups] == pytest.approx([0.8, 0.04])
    assert (first["weight_decay"], second["weight_decay"]) == (0.0, 0.5)
    assert first["name"] == "stem"
    assert first["params"][0] is model[0].weight
    assert built.defaults["lr"] == pytest.approx(0.04)


def test_training_starts_from_the_initial_rate_not_from_a_decayed_one() -> None:
    """What a scheduler has done is undone: ``initial_lr`` counts, scaled, and a new scheduler starts from it."""
    model = net()
    users = SGD(model.parameters(), lr=0.8)
    LambdaLR(users, lambda step: 0.0)
    assert users.param_groups[0]["lr"] == 0
    built = fresh(users, model, lr_factor=2.0)
    assert built.param_groups[0]["lr"] == pytest.approx(1.6)
    assert StepLR(built, 1).base_lrs == pytest.approx([1.6])
    assert users.param_groups[0] == {**users.param_groups[0], "lr": 0.0, "initial_lr": 0.8}


def test_a_tensor_learning_rate_is_copied() -> None:
    """The user's own tensor neither changes nor is shared."""
    model = net()
    rate = torch.tensor(0.1)
    built = fresh(SGD(model.parameters(), lr=rate), model, lr_factor=3.0)
    assert float(built.param_groups[0]["lr"]) == pytest.approx(0.3)
    assert float(rate) == pytest.approx(0.1)


def test_the_assumed_optimizer_covers_all_trainable_parameters() -> None:
    """Without an optimizer of the user's there is AdamW over what can be trained."""
    model = net()
    model[0].weight.requires_grad_(False)
    built = fresh(None, model, lr_factor=2.0)
    assert type(built) is AdamW
    assert len(built.param_groups[0]["params"]) == 3
    assert built.param_groups[0]["lr"] == pytest.approx(2e-3)


def test_a_factory_is_called_and_scaled() -> None:
    """A callable makes the optimizer itself; attributes it sets stay, unless the implementation must change."""

    def factory(params: Any) -> Optimizer:
        optimizer = SGD(params, lr=0.1, momentum=0.9)
        optimizer.marked = True  # type: ignore[attr-defined]
        return optimizer

    model = net()
    built = fresh(factory, model, lr_factor=2.0)
    assert built.marked
    assert built.param_groups[0]["lr"] == pytest.approx(0.2)
    other = fresh(factory, model, Settings(optimizer_implementation="fused"), lr_factor=2.0)
    assert not hasattr(other, "marked")
    assert (implementation_of(other), other.param_groups[0]["momentum"]) == ("fused", 0.9)
    assert other.param_groups[0]["lr"] == pytest.approx(0.2)


@pytest.mark.parametrize("cls", [Lion, Passing])
def test_a_class_of_the_users_is_built_again(cls: type[Optimizer]) -> None:
    """Own classes and subclasses come back with their options, though not all defaults are arguments."""
    model, other = net(), net()
    built = fresh(cls(model.parameters(), lr=0.02), model)
    assert type(built) is cls
    expected = train(other, cls(other.parameters(), lr=0.02))
    torch.testing.assert_close(train(model, built), expected, rtol=0, atol=0)


def test_a_class_that_needs_more_asks_for_a_callable() -> None:
    """What cannot be built again is an error with the remedy."""
    model = net()
    with pytest.raises(TaskError, match="callable"):
        fresh(Demanding(model.parameters(), model), model)


def test_a_memory_failure_is_passed_on_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator that gives out while state is made is no wrong setting."""

    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    model = net()
    spec = OptimizerSpec.of(SGD(model.parameters(), lr=0.1), model)
    monkeypatch.setattr(SGD, "__init__", fail)
    with pytest.raises(torch.OutOfMemoryError):
        build_optimizer(spec, model, Settings(optimizer_implementation="for-loop"))


def test_another_model_is_an_error() -> None:
    """Parameters are found by name; a model without them is refused."""
    model = net()
    spec = OptimizerSpec.of(SGD(model.parameters(), lr=0.1), model)
    with pytest.raises(TaskError, match=r"0\.weight"):
        build_optimizer(spec, nn.Linear(2, 2), Settings())


SCHEDULES = [
    lambda optimizer, f: StepLR(optimizer, 3, gamma=0.5),
    lambda optimizer, f: CosineAnnealingLR(optimizer, 8, eta_min=0.01 * f),
    lambda optimizer, f: LambdaLR(optimizer, lambda step: (step + 1) / 10),
    lambda optimizer, f: OneCycleLR(optimizer, max_lr=[0.4 * f, 0.2 * f], total_steps=20),
    lambda optimizer, f: CyclicLR(optimizer, base_lr=[0.1 * f, 0.05 * f], max_lr=0.4 * f, step_size_up=3),
    lambda optimizer, f: SequentialLR(
        optimizer, [LinearLR(optimizer, 0.1, total_iters=4), CosineAnnealingLR(optimizer, 6, eta_min=0.01 * f)], [4]
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_applying_a_factor_multiplies_the_whole_schedule(schedule: Any, steps_before: int) -> None:
    """Scaled in place before or during training, every later rate is that of a schedule built scaled."""

    def run(factor: float, at: int | None) -> list[list[float]]:
        model = net()
        scale = 1.0 if at is not None else factor
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05 * scale}]
        optimizer = SGD(groups, lr=0.1 * scale, momentum=0.5)
        scheduler = schedule(optimizer, scale)
        rates = []
        for step in range(10):
            if step == at:
                apply_to(optimizer, scheduler, factor)
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
        return rates[steps_before:]

    for rate, expected in zip(run(4.0, steps_before), run(4.0, None), strict=True):
        assert rate == pytest.approx(expected)


def test_a_tensor_rate_shared_by_groups_is_multiplied_once_for_each() -> None:
    """Groups without a rate of their own share the default tensor, which belongs to the user."""
    model, rate = net(), torch.tensor(0.1)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = SGD(groups, lr=rate)
    apply_to(optimizer, None, 3.0)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.3, 0.3])
    assert float(rate) == pytest.approx(0.1)


def test_the_floor_of_a_plateau_scheduler_is_multiplied() -> None:
    """ReduceLROnPlateau keeps its own smallest rates."""
    optimizer = SGD(net().parameters(), lr=0.1)
    scheduler = ReduceLROnPlateau(optimizer, patience=0, factor=0.001, min_lr=0.01)
    apply_to(optimizer, scheduler, 2.0)
    for _ in range(3):
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02)


def test_a_scheduler_of_another_optimizer_is_an_error() -> None:
    """Scaling a schedule that moves other rates would do nothing."""
    optimizer, other = SGD(net().parameters(), lr=0.1), SGD(net().parameters(), lr=0.1)
    with pytest.raises(TaskError, match="another optimizer"):
        apply_to(optimizer, StepLR(other, 1), 2.0)
    assert optimizer.param_groups[0]["lr"] == 0.1
