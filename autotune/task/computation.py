"""The ways from a model and a batch to a loss: a training step, a loss function, the model's own, a guess."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotune.errors import TaskError
from autotune.task.inputs import Forward, ModelInputs, call_model, split_inputs
from autotune.task.loss_weight import mean_weight
from autotune.task.output import LOSS_REMEDY, own_loss, prediction, scalar_loss

__all__ = ["Computation", "LossFunction", "OfFunction", "OfModel", "OfStep", "StepLoss", "TrainingStep", "is_labelled"]

LossFunction = Callable[[Any, Any], torch.Tensor]
TrainingStep = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """The loss of one batch."""

    loss: torch.Tensor
    """0-dim, with its graph."""
    weight: float | torch.Tensor | None = None
    """What a ``training_step`` returned beside the loss, or what the loss function's mean is known to be over; None:
    the rows of the batch."""
    output: Any = None
    """What the model returned; None after a ``training_step``, which keeps its output to itself."""


class OfStep:
    """The user's ``training_step``.

    Args:
        step: (model, batch) -> loss or (loss, weight).
    """

    def __init__(self, step: TrainingStep) -> None:
        self._step = step

    def __call__(self, model: nn.Module, batch: Any) -> StepLoss:
        """The loss of ``batch``, and its weight if there is one."""
        returned = self._step(model, batch)
        weight = None
        if isinstance(returned, tuple):
            if len(returned) != 2:
                raise TaskError(
                    f"training_step returned a tuple of {len(returned)}.", "It must return a loss or (loss, weight)."
                )
            returned, weight = returned
            _check_weight(weight)
        return StepLoss(loss=scalar_loss(returned, "training_step"), weight=weight)


class OfFunction:
    """A loss function of the model's prediction and the target (of the whole batch where it has no target).

    Args:
        loss_fn: (output, target) -> loss.
        forward: What the model accepts.
        keep_labels: Hand the target to the model too.
    """

    def __init__(self, loss_fn: LossFunction, forward: Forward, *, keep_labels: bool = False) -> None:
        self._loss_fn = loss_fn
        self._forward = forward
        self._keep_labels = keep_labels
        self._moved: dict[torch.device, LossFunction] = {}

    def __call__(self, model: nn.Module, batch: Any) -> StepLoss:
        """The loss of ``batch``."""
        inputs, target = self.split(batch)
        output = call_model(model, inputs)
        return self.score(output, batch if target is None else target)

    def split(self, batch: Any) -> tuple[ModelInputs, Any | None]:
        """The model's arguments and the target."""
        return split_inputs(batch, forward=self._forward, keep_labels=self._keep_labels)

    def score(self, output: Any, target: Any) -> StepLoss:
        """The loss of an output."""
        predicted = prediction(output)
        loss_fn = self._on(predicted.device) if isinstance(predicted, torch.Tensor) else self._loss_fn
        loss = scalar_loss(loss_fn(predicted, target), "loss_fn")
        return StepLoss(loss=loss, weight=mean_weight(loss_fn, target), output=output)

    def _on(self, device: torch.device) -> LossFunction:
        # Class weights of a loss module live where it was made; the user's module is copied rather than moved.
        if not isinstance(self._loss_fn, nn.Module):
            return self._loss_fn
        if device not in self._moved:
            trainable = next(self._loss_fn.parameters(), None) is not None
            moved = not trainable and any(buffer.device != device for buffer in self._loss_fn.buffers())
            self._moved[device] = copy.deepcopy(self._loss_fn).to(device) if moved else self._loss_fn
        return self._moved[device]


class OfModel:
    """The loss that the model computes itself.

    Args:
        forward: What the model accepts.
        keep_labels: Hand the target to a model that takes it.
    """

    def __init__(self, forward: Forward, *, keep_labels: bool = True) -> None:
        self._forward = forward
        self._keep_labels = keep_labels

    def __call__(self, model: nn.Module, batch: Any) -> StepLoss:
        """The loss of ``batch``."""
        inputs, target = self.split(batch)
        output = call_model(model, inputs)
        found = own_loss(output, labelled=is_labelled(inputs, target))
        if found is None:
            raise TaskError(f"The model returned {type(output).__name__} without a loss of its own.", LOSS_REMEDY)
        return StepLoss(loss=found[0], output=output)

    def split(self, batch: Any) -> tuple[ModelInputs, Any | None]:
        """The model's arguments and the target."""
        return split_inputs(batch, forward=self._forward, keep_labels=self._keep_labels)


Computation = OfStep | OfFunction | OfModel


def is_labelled(inputs: ModelInputs, target: Any) -> bool:
    """Whether the model sees the target, as it must to compute the loss itself.

    Args:
        inputs: Its arguments.
        target: The target, None where the batch has none.

    Returns:
        True also where there is no target to see.
    """
    return target is None or any(value is target for value in inputs.kwargs.values())


def _check_weight(weight: Any) -> None:
    number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not number and not (isinstance(weight, torch.Tensor) and weight.numel() == 1):
        raise TaskError(
            f"training_step returned a weight of type {type(weight).__name__}.",
            "The weight must be a number or a 0-dim tensor, such as the tokens the loss is the mean of.",
        )
