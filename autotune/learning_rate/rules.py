"""How the learning rate follows the batch size: the rules, their cap and the warm-up, each with its source. Pure."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from autotune.errors import SettingsError

__all__ = ["LearningRatePlan", "LrRule", "LrScaling", "WeightDecayScaling", "is_adaptive", "scale"]

LrRule = Literal["linear", "sqrt", "none"]
LrScaling = Literal["linear", "sqrt", "auto"]
WeightDecayScaling = Literal["timescale"]

# Goyal et al. 2017 hold the linear rule up to a factor of 32 (256 to 8k, section 5.2), on one well-studied task and
# with five epochs of warm-up; Shallue et al. 2019 found no rule that held on all of their tasks ("Measuring the Effects
# of Data Parallelism on Neural Network Training", JMLR 20:112). So the factor stops well before that.
CAP = 8.0
# A jump of up to 2x is within what people change by hand; the rule breaks down early in training, while the network
# changes rapidly (Goyal et al. 2017, section 2.2).
WARMUP_ABOVE = 2.0
# Goyal et al. warm up for 5 epochs, for factors up to 32. Factors here end at 8, and many trainings are short,
# so the warm-up also ends after 200 steps.
WARMUP_EPOCHS = 5
WARMUP_STEPS = 200

# Optimizers whose update hardly depends on the gradient's scale: these, and all Adams and LAMBs (such as FusedLAMB).
_ADAPTIVE = frozenset({"rmsprop", "adagrad", "adadelta", "adafactor", "lion", "muon"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRatePlan:
    """What happens to every learning rate of the optimizer."""

    factor: float
    """Every group's learning rate is multiplied by this."""
    rule: LrRule
    """The rule that gave the factor; "none": learning rates are left as they are."""
    capped: bool
    """The rule asked for more than the cap."""
    warmup_steps: int
    """Optimizer steps over which the rate rises from the old value to the new one; 0: at once."""
    notes: tuple[str, ...]
    """Sentences a person should read before training."""
    weight_decay_factor: float = 1.0
    """Every group's weight decay is multiplied by this."""


def is_adaptive(optimizer_name: str) -> bool:
    """Whether the optimizer divides its update by the gradient's own scale, as the Adam family does.

    Args:
        optimizer_name: Class name, qualified or not, such as ``"torch.optim.AdamW"``.
    """
    name = optimizer_name.rpartition(".")[2].lower()
    return "adam" in name or "lamb" in name or name in _ADAPTIVE


def scale(
    *,
    base_batch_size: int | None,
    effective_batch_size: int | None,
    rule: LrScaling | None,
    optimizer_name: str,
    steps_per_epoch: int | None,
    cap: float = CAP,
    reduction: Literal["mean", "sum"] = "mean",
    weight_decay: WeightDecayScaling | None = None,
) -> LearningRatePlan:
    """The learning-rate factor for a changed batch.

    With k = effective / base: linear gives k, sqrt gives sqrt(k), both at most ``cap``; a smaller batch scales down
    by the same rule. A factor above 2 comes with a warm-up. Where the loss is a sum, its gradient is k times as large
    already, which for SGD is the linear rule: the learning rate is left alone.

    Weight decay shrinks the weights by lr x weight_decay per step (SGD and AdamW; Adam divides it by the gradient's
    scale): per epoch, by factor / k of what it did. Under the linear rule that is 1; under any other, "timescale"
    multiplies the decay by k / factor.

    Args:
        base_batch_size: Samples per optimizer step the learning rate was chosen for; None: unknown to us.
        effective_batch_size: Samples per optimizer step from now on; None: the user's own batches are kept.
        rule: "linear", "sqrt", "auto" (sqrt for the Adam family, else linear) or None (leave the rate alone).
        optimizer_name: Class name of the optimizer, qualified or not.
        steps_per_epoch: Optimizer steps per epoch with the new batch; None for streams of unknown length.
        cap: Largest factor, 1 or more.
        reduction: Whether the loss is the mean or the sum over the samples of a batch.
        weight_decay: None: the decay is left alone; "timescale": its pull per epoch stays what it was.

    Returns:
        Factors, rule, warm-up and the notes to show.

    Raises:
        SettingsError: An unknown rule, a batch below 1, or a cap below 1.

    Source: linear: Goyal et al. 2017, "Accurate, Large Minibatch SGD" (arXiv:1706.02677), section 2.1, "Linear Scaling
    Rule", from equations 3 and 4; warm-up: section 2.2, gradual warm-up. Square root: Krizhevsky 2014, "One weird trick
    for parallelizing convolutional neural networks" (arXiv:1404.5997), and for Adam and RMSprop Malladi et al. 2022,
    "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms" (arXiv:2205.10287). Weight decay: Wang & Aitchison
    2024, "How to set AdamW's weight decay as you scale model and dataset size" (arXiv:2405.13698), whose time scale
    1 / (lr x weight decay), counted in epochs, is held. We differ in the cap (every parameter group has the same
    factor, so it holds for each), in a shorter warm-up, and from Malladi et al. in the betas and eps, which they scale
    as well (1 - beta by k, eps by 1 / sqrt(k)) and we leave alone.
    """
    _check(base_batch_size, effective_batch_size, rule, cap)
    if weight_decay not in (None, *get_args(WeightDecayScaling)):
        raise SettingsError(f"weight_decay={weight_decay!r} is not a rule.", 'Use "timescale" or None.')
    if base_batch_size is None or effective_batch_size is None or base_batch_size == effective_batch_size:
        return LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=())
    growth = effective_batch_size / base_batch_size
    if reduction == "sum":
        note = _sum_note(growth, optimizer_name)
        return LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=(note,))
    plan = _plan(growth, rule, optimizer_name, steps_per_epoch, cap)
    return plan if weight_decay is None else _with_decay(plan, growth)


def _with_decay(plan: LearningRatePlan, growth: float) -> LearningRatePlan:
    factor = growth / plan.factor
    if math.isclose(factor, 1.0):
        return plan
    note = (
        f"Weight decay: x{factor:.3g} in every parameter group, so that its pull per epoch stays what it was (Wang & "
        "Aitchison 2024)."
    )
    return dataclasses.replace(plan, weight_decay_factor=factor, notes=(*plan.notes, note))


def _plan(
    growth: float, rule: LrScaling | None, optimizer_name: str, steps_per_epoch: int | None, cap: float
) -> LearningRatePlan:
    adaptive = is_adaptive(optimizer_name)
    if rule is None:
        note = f"The learning rate is left alone (lr_scaling=None) although the batch is {growth:g}x the old one."
        return LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=(note,))
    used: LrRule = ("sqrt" if adaptive else "linear") if rule == "auto" else rule
    wanted = growth if used == "linear" else math.sqrt(growth)
    factor = min(wanted, cap)
    return LearningRatePlan(
        factor=factor,
        rule=used,
        capped=wanted > cap,
        warmup_steps=_warmup_steps(factor, steps_per_epoch),
        notes=_notes(used, wanted, factor, optimizer_name if adaptive else None),
    )


def _sum_note(growth: float, optimizer_name: str) -> str:
    said = f"The learning rate is left alone: the loss is a sum, so its gradient becomes {growth:g}x by itself"
    if is_adaptive(optimizer_name):
        name = optimizer_name.rpartition(".")[2]
        return f"{said}; {name} divides by the gradient's scale, so scale the rate by hand if training is slower."
    return f"{said}, as if the rate had been scaled linearly; warm up by hand if the loss diverges at first."


def _check(base: int | None, effective: int | None, rule: str | None, cap: float) -> None:
    if rule is not None and rule not in get_args(LrScaling):
        raise SettingsError(f"lr_scaling={rule!r} is not a rule.", 'Use "linear", "sqrt", "auto" or None.')
    for name, value in (("base_batch_size", base), ("effective_batch_size", effective)):
        if value is not None and value < 1:
            raise SettingsError(f"{name}={value!r} is not possible.", "It counts samples: 1 or more.")
    if not cap >= 1:
        raise SettingsError(f"cap={cap!r} is not possible.", "The cap on the learning-rate factor is 1 or more.")


def _warmup_steps(factor: float, steps_per_epoch: int | None) -> int:
    if factor <= WARMUP_ABOVE:
        return 0
    if steps_per_epoch is None:
        return WARMUP_STEPS
    return min(WARMUP_STEPS, WARMUP_EPOCHS * max(1, steps_per_epoch))


def _notes(rule: LrRule, wanted: float, factor: float, adaptive_name: str | None) -> tuple[str, ...]:
    notes = []
    if wanted > factor:
        notes.append(
            f"The {rule} rule asks for a factor of {wanted:g}; it is capped at {factor:g}, in every parameter group."
        )
    if rule == "linear" and adaptive_name is not None:
        notes.append(
            f"{adaptive_name.rpartition('.')[2]} divides by the gradient's own scale, and for Adam and RMSprop the "
            f"square root is the derived rule (factor {math.sqrt(wanted):.3g}, Malladi et al. 2022): if the loss is "
            'worse than before, use lr_scaling="sqrt" or "auto".'
        )
    return tuple(notes)
