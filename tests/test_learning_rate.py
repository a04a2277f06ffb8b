"""How the learning rate follows the batch size."""

from __future__ import annotations

import math
from typing import Literal

import pytest

from autotune.errors import SettingsError
from autotune.learning_rate import LearningRatePlan, is_adaptive, scale


def plan(base: int | None = 32, effective: int | None = 128, **changes: object) -> LearningRatePlan:
    """A plan for SGD with the linear rule, unless changed."""
    arguments: dict = {"rule": "linear", "optimizer_name": "torch.optim.SGD", "steps_per_epoch": 100}
    return scale(base_batch_size=base, effective_batch_size=effective, **{**arguments, **changes})


@pytest.mark.parametrize(
    ("rule", "optimizer", "factor", "used"),
    [
        ("linear", "torch.optim.SGD", 4.0, "linear"),
        ("linear", "torch.optim.AdamW", 4.0, "linear"),
        ("sqrt", "torch.optim.SGD", 2.0, "sqrt"),
        ("auto", "torch.optim.SGD", 4.0, "linear"),
        ("auto", "torch.optim.AdamW", 2.0, "sqrt"),
        ("auto", "torch.optim.RMSprop", 2.0, "sqrt"),
        ("auto", "my.own.FusedAdam", 2.0, "sqrt"),
    ],
)
def test_each_rule_gives_its_factor(rule: str, optimizer: str, factor: float, used: str) -> None:
    """A four times larger batch gives 4 or 2, and the plan names the rule that was really used.

    Reports: xingyizhou/CenterNet#476.
    """
    made = plan(rule=rule, optimizer_name=optimizer)
    assert made.factor == pytest.approx(factor)
    assert made.rule == used


def test_same_batch_changes_nothing() -> None:
    """With an unchanged effective batch there is no factor, no warm-up and nothing to read."""
    made = plan(32, 32, optimizer_name="torch.optim.AdamW")
    assert (made.factor, made.rule, made.capped, made.warmup_steps, made.notes) == (1.0, "none", False, 0, ())


@pytest.mark.parametrize(("base", "effective"), [(None, 128), (32, None), (None, None)])
def test_unknown_batch_changes_nothing(base: int | None, effective: int | None) -> None:
    """Where batches are the user's own there is nothing to scale by."""
    assert plan(base, effective).factor == 1.0


def test_no_rule_leaves_the_rate_and_says_so() -> None:
    """lr_scaling=None is obeyed, with a note that the batch grew (mittagessen/kraken#747)."""
    made = plan(rule=None)
    assert (made.factor, made.rule, made.warmup_steps) == (1.0, "none", 0)
    assert "4x" in made.notes[0]


@pytest.mark.parametrize(("effective", "factor", "capped"), [(256, 8.0, False), (288, 8.0, True), (32_000, 8.0, True)])
def test_factor_is_capped_at_eight(effective: int, factor: float, capped: bool) -> None:
    """Exactly eight times is no cap; beyond, the factor stays and a note says what the rule asked for.

    Reports: open-mmlab/mmdetection#1710.
    """
    made = plan(32, effective)
    assert made.factor == factor
    assert made.capped is capped
    assert any("capped" in note for note in made.notes) is capped


@pytest.mark.parametrize(("rule", "factor"), [("linear", 1 / 32), ("sqrt", math.sqrt(1 / 32))])
def test_smaller_batch_scales_down_without_cap_or_warmup(rule: str, factor: float) -> None:
    """The same rule holds downwards."""
    made = plan(1024, 32, rule=rule)
    assert made.factor == pytest.approx(factor)
    assert (made.capped, made.warmup_steps) == (False, 0)


@pytest.mark.parametrize(
    ("effective", "steps_per_epoch", "steps"),
    [(64, 100, 0), (65, 100, 200), (128, 100, 200), (128, 10, 50), (128, 0, 5), (128, None, 200)],
)
def test_warmup_comes_with_a_factor_above_two(effective: int, steps_per_epoch: int | None, steps: int) -> None:
    """Five epochs of warm-up, 200 steps at most; none for a factor of two (open-mmlab/mmdetection#1710)."""
    assert plan(32, effective, steps_per_epoch=steps_per_epoch).warmup_steps == steps


def test_linear_rule_on_the_adam_family_carries_a_note() -> None:
    """Adam users read that the square root is their family's rule, with the factor it would give.

    Reports: xingyizhou/CenterNet#476.
    """
    (note,) = plan(optimizer_name="torch.optim.AdamW").notes
    assert "AdamW" in note
    assert "square root" in note
    assert "factor 2," in note


@pytest.mark.parametrize(("rule", "optimizer"), [("linear", "torch.optim.SGD"), ("sqrt", "torch.optim.AdamW")])
def test_no_note_where_the_rule_suits(rule: str, optimizer: str) -> None:
    """SGD with the linear rule, and Adam with the square root, need no warning."""
    assert plan(rule=rule, optimizer_name=optimizer).notes == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rule": "cubic"}, "lr_scaling='cubic'"),
        ({"base": 0}, "base_batch_size=0"),
        ({"effective": -1}, "effective_batch_size=-1"),
        ({"cap": 0.5}, "cap=0.5"),
        ({"cap": math.nan}, "cap=nan"),
    ],
)
def test_impossible_arguments_are_named(changes: dict, named: str) -> None:
    """What cannot be is refused with its value."""
    with pytest.raises(SettingsError, match=named.replace("(", r"\(")):
        plan(**changes)


@pytest.mark.parametrize(
    ("name", "adaptive"),
    [("torch.optim.NAdam", True), ("Lion", True), ("FusedLAMB", True), ("torch.optim.ASGD", False)],
)
def test_adaptive_optimizers_are_known_by_name(name: str, adaptive: bool) -> None:
    """Qualified and plain names both count."""
    assert is_adaptive(name) is adaptive


@pytest.mark.parametrize("name", ["torch.optim.SGD", "torch.optim.AdamW"])
@pytest.mark.parametrize("rule", ["linear", "sqrt", "auto", None])
def test_a_summed_loss_leaves_the_rate_alone(name: str, rule: Literal["linear", "sqrt", "auto"] | None) -> None:
    """Its gradient grows with the batch already, which the note says."""
    plan = scale(
        base_batch_size=32,
        effective_batch_size=128,
        rule=rule,
        optimizer_name=name,
        steps_per_epoch=10,
        reduction="sum",
    )
    assert (plan.factor, plan.rule, plan.capped, plan.warmup_steps) == (1.0, "none", False, 0)
    assert "the loss is a sum, so its gradient becomes 4x by itself" in plan.notes[0]


def test_a_summed_loss_at_the_same_batch_needs_no_note() -> None:
    """Nothing changes, so nothing is said."""
    plan = scale(
        base_batch_size=32,
        effective_batch_size=32,
        rule="linear",
        optimizer_name="torch.optim.SGD",
        steps_per_epoch=10,
        reduction="sum",
    )
    assert plan.notes == ()
