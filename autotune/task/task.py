"""One training task: a model, its data, loss and optimizer, checked and brought to one form."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from autotune.errors import SettingsError, TaskError
from autotune.task.hf_trainer import TrainerParts, is_hf_trainer
from autotune.task.layers import compiled_in_place
from autotune.task.lightning import (
    LightningOptimizer,
    LightningStep,
    check_automatic,
    has_own,
    hooks_not_run,
    is_lightning_module,
    unmeasured_hooks,
)
from autotune.task.loader_parts import LoaderParts
from autotune.task.optimizer_spec import OptimizerFactory, OptimizerSpec

__all__ = ["Task"]


class Task:
    """What is trained. Treat it as immutable; it holds the user's own objects and changes none of them.

    Args:
        model: The module, or a factory of it without arguments. Of a ``LightningModule`` (or its class), its own
            ``training_step`` and ``configure_optimizers`` are used where ``loss_fn``, ``training_step`` and
            ``optimizer`` are not given. A Hugging Face ``Trainer`` brings its model, ``compute_loss``, optimizer,
            loader and arguments along.
        dataset: Map-style dataset, ``IterableDataset``, ``DataLoader`` (its settings are the baseline),
            ``LightningDataModule`` (its ``train_dataloader``), or a factory without arguments that makes one of these.
            Only with a ``Trainer``: None for its ``train_dataset``.
        loss_fn: (output, target) -> 0-dim loss. Default: the model's own loss, else a guess used for measuring only.
        training_step: (model, batch) -> loss or (loss, weight), instead of ``loss_fn``.
        optimizer: An ``Optimizer`` over the model's parameters, or (parameters) -> Optimizer. Default: AdamW(lr=1e-3),
            said to be assumed.
        base_batch_size: Samples per optimizer step that the learning rate was chosen for. Default: the DataLoader's,
            else 32.
        max_grad_norm: Clip gradients to this norm. Default: no clipping.
        collate_fn: List of samples -> batch. Default: torch's.
        sampler: Iterable of indices. Default: by ``shuffle``.
        shuffle: Default: True for map-style datasets without a sampler.
        device: Such as ``"cpu"`` or ``"cuda:0"``. Default: the accelerator, else the CPU.
        name: For reports. Default: the model's class or the factory's name.

    Raises:
        TaskError: A part cannot be trained with; the message names the argument.
        SettingsError: A value is not possible, or two arguments cannot go together.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        dataset: Any = None,
        *,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        training_step: Callable[[nn.Module, Any], Any] | None = None,
        optimizer: Optimizer | OptimizerFactory | OptimizerSpec | None = None,
        base_batch_size: int | None = None,
        max_grad_norm: float | None = None,
        collate_fn: Callable[..., Any] | None = None,
        sampler: Any = None,
        shuffle: bool | None = None,
        device: str | torch.device | None = None,
        name: str | None = None,
    ) -> None:
        _check_loss(loss_fn, training_step)
        self.name = name if name is not None else _name(model)
        self.notes: tuple[str, ...] = ()
        self.trains_with: Mapping[str, Any] = {}
        if is_hf_trainer(model):
            own = TrainerParts.of(model, dataset)
            model, dataset, self.trains_with, self.notes = own.model, own.data, own.trains_with, (own.note,)
            training_step = own.training_step if loss_fn is None and training_step is None else training_step
            optimizer = own.optimizer if optimizer is None else optimizer
            base_batch_size = own.base_batch_size if base_batch_size is None else base_batch_size
            max_grad_norm = own.max_grad_norm if max_grad_norm is None else max_grad_norm
            device = own.device if device is None else device
        _check_model(model)
        self.model = model
        self.data = LoaderParts.of(dataset, collate_fn=collate_fn, sampler=sampler, shuffle=shuffle)
        self.loss_fn = loss_fn
        self.training_step = training_step
        self.optimizer = OptimizerSpec.of(optimizer, model)
        if is_lightning_module(model):
            self._take_from_lightning(optimizer, dataset)
        self.base_batch_size = _batch_size(base_batch_size)
        self.max_grad_norm = _norm(max_grad_norm)
        self.device = _device(device)

    def build_model(self) -> nn.Module:
        """The model: the instance itself, or what the factory makes.

        Returns:
            The module.

        Raises:
            TaskError: The factory failed, or made something that cannot be trained.
        """
        if isinstance(self.model, nn.Module):
            return self.model
        try:
            made = self.model()
        except Exception as error:
            raise TaskError(
                f"The model factory {_name(self.model)} raised {type(error).__name__}: {error}.",
                "It is called without arguments and must return a torch.nn.Module.",
            ) from error
        if not isinstance(made, nn.Module):
            raise TaskError(
                f"The model factory {_name(self.model)} returned {type(made).__name__}.",
                "It must return a torch.nn.Module.",
            )
        _check_module(made)
        self._check_lightning(made)
        return made

    def _take_from_lightning(self, optimizer: Any, dataset: Any) -> None:
        """The module's own parts in place of those that were not given."""
        if self.loss_fn is None and self.training_step is None and _is_lightning_with_step(self.model):
            self.training_step = LightningStep()
            self.notes = (unmeasured_hooks(self.model, dataset),)
            if isinstance(self.model, nn.Module):
                check_automatic(self.model)
        if optimizer is None and has_own(self.model, "configure_optimizers"):
            self.optimizer = OptimizerSpec(factory=LightningOptimizer(), of_model=True)

    def _check_lightning(self, made: nn.Module) -> None:
        if isinstance(self.training_step, LightningStep):
            check_automatic(made)
        elif self.loss_fn is None and self.training_step is None and _is_lightning_with_step(made):
            raise TaskError(
                f"The model factory {_name(self.model)} returned a LightningModule, whose own step it hides.",
                f"Pass the class {type(made).__name__} (or functools.partial of it), a module, or training_step=.",
            )


def _check_model(model: Any) -> None:
    if isinstance(model, nn.Module):
        _check_module(model)
    elif not callable(model):
        raise TaskError(
            f"model must be a torch.nn.Module or a factory of one, not {type(model).__name__}.",
            "Pass the module, or a function without arguments that returns it.",
        )


def _is_lightning_with_step(model: Any) -> bool:
    return is_lightning_module(model) and has_own(model, "training_step")


def _check_module(model: nn.Module) -> None:
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise TaskError(
            "model is already compiled by torch.compile.",
            "Pass the module as it was before (model._orig_mod); whether to compile is one of the things tuned.",
        )
    in_place = compiled_in_place(model)
    if in_place:
        raise TaskError(
            f"model{f'.{in_place[0]}' if in_place[0] else ''} is already compiled: compile() was called on it.",
            "Hand it over before that; whether to compile is one of the things tuned.",
        )
    lazy = [name for name, module in model.named_modules() if _is_lazy(module)]
    if lazy:
        raise TaskError(
            f"model has lazy layers whose shapes are not known yet: {', '.join(lazy)}.",
            "Run it on one batch first, or pass a factory that does.",
        )
    meta = next((name for name, parameter in model.named_parameters() if parameter.is_meta), None)
    if meta is not None:
        raise TaskError(f"model has parameters without memory (meta device): {meta}.", "Use model.to_empty() first.")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        hooks = ", ".join(hooks_not_run(model))
        remedy = f"Call its hooks first where these make some: {hooks}." if hooks else "Unfreeze some."
        raise TaskError("model has no parameter that requires gradients: there is nothing to train.", remedy)


def _is_lazy(module: nn.Module) -> bool:
    return any(map(is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False))))


def _check_loss(loss_fn: Any, training_step: Any) -> None:
    if loss_fn is not None and training_step is not None:
        raise TaskError("loss_fn and training_step were both given.", "Leave one out: a training_step has its loss.")
    if isinstance(loss_fn, type) and issubclass(loss_fn, nn.Module):
        raise TaskError(f"loss_fn is the class {loss_fn.__name__}.", f"Pass an instance: {loss_fn.__name__}().")
    for name, value, form in (
        ("loss_fn", loss_fn, "(output, target) -> loss"),
        ("training_step", training_step, "(model, batch) -> loss or (loss, weight)"),
    ):
        if value is not None and not callable(value):
            raise TaskError(f"{name} must be callable, not {type(value).__name__}.", f"It is called as {form}.")


def _batch_size(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise SettingsError(f"base_batch_size={value!r} is not possible.", "Pass an int of at least 1, or None.")
    return int(value)


def _norm(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise SettingsError(f"max_grad_norm={value!r} is not possible.", "Pass a number above 0, or None.")
    return float(value)


def _device(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return str(torch.device(value))
    except (RuntimeError, TypeError) as error:
        raise SettingsError(f"device={value!r} is not a torch device.", "Such as 'cpu' or 'cuda:0'.") from error


def _name(value: Any) -> str:
    if isinstance(value, nn.Module):
        return type(value).__name__
    return str(getattr(value, "__name__", type(value).__name__))
