"""What comes out of a model: the part a loss function takes, the model's own loss, and a guess of the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from autotune.errors import TaskError

__all__ = ["LOSS_REMEDY", "guess_loss", "own_loss", "prediction", "scalar_loss"]

LOSS_REMEDY = "Pass loss_fn=(output, target) -> loss, or training_step=(model, batch) -> loss."
_IGNORED_CLASS = -100
"""``ignore_index`` of torch's cross-entropy."""


def prediction(output: Any) -> Any:
    """The part of a model's output that ``loss_fn`` gets.

    Args:
        output: A tensor; a tuple or list (its first item); a mapping (``logits``, ``output``, else the first tensor);
            an object with ``.logits``.

    Returns:
        That part; the output itself where none of these applies.
    """
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, Mapping):
        named = next((output[key] for key in ("logits", "output") if output.get(key) is not None), None)
        if named is not None:
            return named
        return next((value for value in output.values() if isinstance(value, torch.Tensor)), output)
    logits = getattr(output, "logits", None)
    if logits is not None:
        return logits
    return output[0] if isinstance(output, (tuple, list)) and output else output


def own_loss(output: Any, *, labelled: bool) -> tuple[torch.Tensor, str] | None:
    """The loss that a model computed itself.

    Args:
        output: A 0-dim floating tensor, something with ``.loss`` or ``["loss"]``, a tuple with one such tensor, or a
            mapping of nothing but such tensors (their sum).
        labelled: The model saw the target. If not, a scalar behind other outputs is an auxiliary term, not the loss.

    Returns:
        The 0-dim loss and how it was found; None where there is none.
    """
    if _is_scalar(output):
        return output, "the model's output"
    if isinstance(output, Mapping):
        if _is_scalar(output.get("loss")):
            return output["loss"], 'the model\'s own ["loss"]'
        if output and all(map(_is_scalar, output.values())):
            return torch.stack(list(output.values())).sum(), f"the sum of the model's {', '.join(map(str, output))}"
        return None
    if _is_scalar(getattr(output, "loss", None)):
        return output.loss, "the model's own .loss"
    if isinstance(output, (tuple, list)):
        scalars = [item for item in (output if labelled else output[:1]) if _is_scalar(item)]
        return (scalars[0], "the scalar in the model's output") if len(scalars) == 1 else None
    return None


def guess_loss(output: Any, target: Any) -> tuple[Callable[[Any, Any], torch.Tensor], str]:
    """A loss function that fits the shapes and types, good for measuring speed only.

    Args:
        output: The prediction, ``(batch, classes, …)``, ``(batch, …, classes)`` or like the target.
        target: Class indices ``(batch, …)``, or values with as many elements as the output.

    Returns:
        (output, target) -> 0-dim loss, and its name: cross-entropy for class indices, else mean squared error.

    Raises:
        TaskError: Neither fits.
    """
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        raise TaskError(f"No loss can be guessed: the model returned {_form(output)}.", LOSS_REMEDY)
    if not isinstance(target, torch.Tensor):
        missing = "the batch has no target" if target is None else f"the target is {_form(target)}"
        raise TaskError(f"No loss can be guessed: {missing}.", LOSS_REMEDY)
    if target.is_complex() or target.numel() == 0:
        raise TaskError(f"No loss can be guessed for the target {_form(target)}.", LOSS_REMEDY)
    if not target.is_floating_point() and output.ndim == target.ndim + 1:
        if output.shape[0] == target.shape[0] and output.shape[2:] == target.shape[1:] and output.shape[1] > 1:
            _check_classes(target, output.shape[1])
            return _cross_entropy, "cross-entropy"
        if output.shape[:-1] == target.shape and output.shape[-1] > 1:
            _check_classes(target, output.shape[-1])
            return _cross_entropy_last, "cross-entropy over the last dimension"
    if output.numel() == target.numel() and output.shape[0] == target.shape[0]:
        return _squared_error, "mean squared error"
    raise TaskError(
        f"No loss can be guessed for the output {_form(output)} and the target {_form(target)}.", LOSS_REMEDY
    )


def scalar_loss(value: Any, source: str) -> torch.Tensor:
    """``value`` as a 0-dim floating loss.

    Args:
        value: What a user's function returned.
        source: That function's argument name, for the message.

    Returns:
        The 0-dim tensor, with its graph.

    Raises:
        TaskError: It is none.
    """
    if not isinstance(value, torch.Tensor):
        raise TaskError(f"{source} returned {type(value).__name__}, not a tensor.", "It must return a 0-dim loss.")
    if not value.is_floating_point():
        raise TaskError(f"{source} returned {_form(value)}, not a floating loss.", "It must return a 0-dim loss.")
    if value.numel() != 1:
        raise TaskError(
            f"{source} returned {_form(value)}, not one number.",
            "It must return a 0-dim loss: take the mean, or use reduction='mean'.",
        )
    return value.reshape(())


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()


def _check_classes(target: torch.Tensor, classes: int) -> None:
    low, high = int(target.min()), int(target.max())
    if high >= classes or (low < 0 and low != _IGNORED_CLASS):
        raise TaskError(
            f"No loss can be guessed: targets run from {low} to {high}, but the model returned {classes} classes.",
            LOSS_REMEDY,
        )


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, target.long())


def _cross_entropy_last(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), target.flatten().long())


def _squared_error(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output, target.reshape(output.shape).to(output.dtype))


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__
