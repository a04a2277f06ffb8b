"""Settling the loss of a task: the user's, the model's own, or a guess that is good enough to measure speed with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from autotune.errors import AutotuneError, TaskError
from autotune.oom import memory_failure
from autotune.task.batches import batch_signature
from autotune.task.computation import (
    Computation,
    LossFunction,
    OfFunction,
    OfModel,
    OfStep,
    StepLoss,
    TrainingStep,
    is_labelled,
)
from autotune.task.inputs import Forward, call_model
from autotune.task.names import qualified_name
from autotune.task.output import guess_loss, own_loss, prediction
from autotune.task.reduction import Reduction, declared_reduction, probed_reduction
from autotune.task.rng import rng_kept

__all__ = ["ResolvedLoss", "StepLoss", "resolve_loss"]

_STEP_REMEDY = "It is called as training_step(model, batch), the batch as the loader yields it."
_MODEL_REMEDY = "Pass training_step=(model, batch) -> loss, which calls the model the way it wants to be called."
_LOSS_FN_REMEDY = (
    "loss_fn is called with (output, target); for anything else pass training_step=(model, batch) -> loss."
)


class ResolvedLoss:
    """A way to compute the loss that has been settled; call it as ``loss(model, batch) -> StepLoss``.

    Args:
        computation: What the call does.
        description: For people, such as ``loss_fn torch.nn.modules.loss.CrossEntropyLoss``.
        inferred: It is a guess, for measuring only.
        reduction: Whether the loss is the mean or the sum over the samples.
        notes: What people should know about how it was settled.
    """

    def __init__(
        self,
        computation: Computation,
        *,
        description: str,
        inferred: bool = False,
        reduction: Reduction = "mean",
        notes: tuple[str, ...] = (),
    ) -> None:
        self._computation = computation
        self.description = description
        self.inferred = inferred
        self.reduction = reduction
        self.notes = notes

    def __call__(self, model: nn.Module, batch: Any) -> StepLoss:
        """The loss of ``batch``.

        Args:
            model: In the mode it is to be trained in.
            batch: What the loader yields, on the model's device.

        Returns:
            Loss, weight and output.

        Raises:
            TaskError: What came out is no loss.
        """
        return self._computation(model, batch)


def resolve_loss(
    *,
    loss_fn: LossFunction | None = None,
    training_step: TrainingStep | None = None,
    model: nn.Module,
    batch: Any = None,
    reduction: Reduction | None = None,
) -> ResolvedLoss:
    """Settle how the loss is computed, and try it once.

    ``training_step``, else ``loss_fn``, else the model's own loss (a scalar output, ``.loss``, ``["loss"]``), else a
    guess: cross-entropy for class indices, mean squared error otherwise.

    The model runs once on the batch, forward only, in training mode; where the loss does not say whether it is a
    mean or a sum, again on a third of the rows and on these repeated. Random generators and modes are put back;
    buffers that the first forward changes (BatchNorm's) are not: pass a disposable model.

    Args:
        loss_fn: (output, target) -> 0-dim loss.
        training_step: (model, batch) -> loss or (loss, weight).
        model: On the batch's device.
        batch: What the loader yields. None: nothing is run, and without ``loss_fn`` and ``training_step`` only the
            model's own loss will do.
        reduction: Known already; None: as ``loss_fn`` declares it, else found out on the batch, else "mean".

    Returns:
        The loss.

    Raises:
        TaskError: There is no way to a loss; the message names ``loss_fn`` and ``training_step``.
    """
    if training_step is not None:
        return _of_training_step(training_step, model, batch, reduction)
    if loss_fn is not None:
        return _of_loss_fn(loss_fn, model, batch, reduction or declared_reduction(loss_fn))
    if batch is None:
        return _settled(OfModel(Forward.of(model)), "the model's own loss", model, None, reduction)
    with _undisturbed(model):
        return _own_or_guessed(model, batch, reduction)


def _of_training_step(
    training_step: TrainingStep, model: nn.Module, batch: Any, reduction: Reduction | None
) -> ResolvedLoss:
    computation = OfStep(training_step)
    if batch is not None:
        with _undisturbed(model), _blaming(f"training_step {qualified_name(training_step)}", batch, _STEP_REMEDY):
            gradients = _gradients(model)
            first = computation(model, batch)
            _check_trainable(first.loss, "training_step")
            if _gradients(model) != gradients:
                _check_differentiable(first.loss, model)
        if first.weight is not None:  # said to be the mean over that weight
            reduction = reduction or "mean"
    return _settled(computation, f"training_step {qualified_name(training_step)}", model, batch, reduction)


def _of_loss_fn(loss_fn: LossFunction, model: nn.Module, batch: Any, reduction: Reduction | None) -> ResolvedLoss:
    computation = OfFunction(loss_fn, Forward.of(model))
    unused: tuple[str, ...] = ()
    if batch is not None:
        with _undisturbed(model):
            inputs, target = computation.split(batch)
            unused = inputs.unused
            with _blaming("the model", batch, _MODEL_REMEDY):
                output = call_model(model, inputs)
            with _blaming(f"loss_fn {qualified_name(loss_fn)}", (prediction(output), target), _LOSS_FN_REMEDY):
                _check_trainable(computation.score(output, batch if target is None else target).loss, "loss_fn")
    return _settled(computation, f"loss_fn {qualified_name(loss_fn)}{_unused(unused)}", model, batch, reduction)


def _own_or_guessed(model: nn.Module, batch: Any, reduction: Reduction | None) -> ResolvedLoss:
    forward = Forward.of(model)
    kept, output = _called(model, batch, forward)
    computation = OfModel(forward, keep_labels=kept)
    inputs, target = computation.split(batch)
    found = own_loss(output, labelled=is_labelled(inputs, target))
    if found is not None:
        _check_trainable(found[0], "the model")
        return _settled(computation, f"{found[1]}{_unused(inputs.unused)}", model, batch, reduction)
    function, name = guess_loss(prediction(output), target)
    guess = OfFunction(function, forward, keep_labels=kept)
    _check_trainable(guess.score(output, target).loss, "the model")
    return ResolvedLoss(
        guess, description=f"{name} (guessed, for measuring only){_unused(inputs.unused)}", inferred=True
    )


def _settled(
    computation: Computation, description: str, model: nn.Module, batch: Any, reduction: Reduction | None
) -> ResolvedLoss:
    notes: tuple[str, ...] = ()
    if reduction is None and batch is not None:
        with _undisturbed(model):
            reduction, note = probed_reduction(computation, model, batch)
        notes = (note,) if note else ()
    return ResolvedLoss(computation, description=description, reduction=reduction or "mean", notes=notes)


def _called(model: nn.Module, batch: Any, forward: Forward) -> tuple[bool, Any]:
    """The model's output, and whether the target was handed to it."""
    with_labels, _ = OfModel(forward).split(batch)
    without, _ = OfModel(forward, keep_labels=False).split(batch)
    if forward.any_keyword and forward.label is None and set(with_labels.kwargs) != set(without.kwargs):
        # **kwargs may lead to a model that takes labels or to one that does not: only a call tells.
        with contextlib.suppress(TypeError):
            return True, call_model(model, with_labels)
        with _blaming("the model", batch, _MODEL_REMEDY):
            return False, call_model(model, without)
    with _blaming("the model", batch, _MODEL_REMEDY):
        return True, call_model(model, with_labels)


@contextlib.contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Training mode with gradients (a step may differentiate by itself); modes and generators put back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    device = next((parameter.device for parameter in model.parameters()), None)
    with rng_kept(device), torch.enable_grad():
        if not model.training:  # a model in training mode may have parts that are meant to stay in eval mode
            model.train()
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training


@contextlib.contextmanager
def _blaming(culprit: str, arguments: Any, remedy: str) -> Iterator[None]:
    try:
        yield
    except AutotuneError:
        raise
    except Exception as error:
        raise TaskError(
            f"{culprit} failed on {batch_signature(arguments)}: {type(error).__name__}: {str(error).rstrip('.')}.",
            remedy,
        ) from error


def _check_trainable(loss: torch.Tensor, source: str) -> None:
    if not loss.requires_grad:
        raise TaskError(
            f"The loss of {source} does not depend on any parameter that requires gradients.",
            "Check for frozen parameters, .detach(), .item() or torch.no_grad() on the way to it.",
        )


def _gradients(model: nn.Module) -> list[tuple[int, int] | None]:
    """Which gradients there are, and how often each was written to."""
    found = [parameter.grad for parameter in model.parameters()]
    return [None if gradient is None else (id(gradient), gradient._version) for gradient in found]


def _check_differentiable(loss: torch.Tensor, model: nn.Module) -> None:
    """A step may train a part of the model itself, but not run the backward pass of the loss it returns."""
    try:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)
    except RuntimeError as error:
        if memory_failure(error) is not None:
            raise
        raise TaskError(
            "training_step ran the backward pass of the loss that it returns, which is run again by whoever calls it: "
            f"{str(error).partition('. ')[0].rstrip('.')}.",
            "Return the loss without calling backward() on it or stepping an optimizer. Several losses (as of a GAN): "
            "return their sum, one optimizer having a parameter group for each.",
        ) from error


def _unused(keys: tuple[str, ...]) -> str:
    return f"; not passed to the model: {', '.join(keys)}" if keys else ""
