"""What torch's own classification losses take their mean over: the targets that are not ignored, by class weight."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.task.names import qualified_name

__all__ = ["is_exact", "mean_weight"]

_MODULES: tuple[type[nn.Module], ...] = (nn.CrossEntropyLoss, nn.NLLLoss)
_FUNCTIONS: tuple[Callable[..., Any], ...] = (functional.cross_entropy, functional.nll_loss)
_IGNORED_CLASS = -100
"""Where ``ignore_index`` is not given."""
_Terms = tuple[Tensor | None, int]


def mean_weight(loss_fn: Any, target: Any) -> Tensor | None:
    """The weight by which a mean loss adds up with that of other batches to the mean over all of them.

    Args:
        loss_fn: Any loss function.
        target: What it is called with.

    Returns:
        For ``nn.CrossEntropyLoss`` and ``nn.NLLLoss`` (and their functions, also in a ``functools.partial``) with
        reduction "mean" and class indices: the class weights of the targets that are not ignored, summed, on their
        device, read by nobody here. None for all others, whose mean is taken to be one over rows; so is that over
        targets that are probabilities.
    """
    terms = _terms(loss_fn)
    if terms is None or not isinstance(target, Tensor) or target.is_floating_point():
        return None
    class_weights, ignored = terms
    counted = target != ignored
    if class_weights is None:
        return counted.sum()
    classes = torch.where(counted, target, torch.zeros_like(target)).long()
    return (class_weights.detach()[classes] * counted).sum()


def is_exact(loss_fn: str) -> bool:
    """Whether ``mean_weight`` may know a loss function of this qualified name.

    Args:
        loss_fn: As ``qualified_name`` gives it.
    """
    return loss_fn in {qualified_name(known) for known in (*_MODULES, *_FUNCTIONS)}


def _terms(loss_fn: Any) -> _Terms | None:
    """Class weights and ignored class; None where it is no such mean."""
    if isinstance(loss_fn, _MODULES):
        own: Any = loss_fn
        overridden = all(type(own).forward is not kind.forward for kind in _MODULES)
        return None if overridden or own.reduction != "mean" else (own.weight, own.ignore_index)
    given: dict[str, Any] = {}
    if isinstance(loss_fn, functools.partial) and not loss_fn.args:
        loss_fn, given = loss_fn.func, loss_fn.keywords
    otherwise = given.get("reduction", "mean") != "mean" or {"reduce", "size_average"} & set(given)
    if otherwise or not any(loss_fn is function for function in _FUNCTIONS):
        return None
    return given.get("weight"), given.get("ignore_index", _IGNORED_CLASS)
