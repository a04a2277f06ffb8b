"""What the user's optimizer is made of, so that an equal one can be made for another copy of the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from autotune.errors import TaskError
from autotune.task.names import qualified_name

__all__ = ["ASSUMED_LR", "OptimizerFactory", "OptimizerSpec", "ParameterGroup"]

ASSUMED_LR = 1e-3
"""Learning rate of the AdamW that is assumed where no optimizer was given."""

OptimizerFactory = Callable[[Any], Optimizer]
ParameterGroup = tuple[tuple[str, ...], dict[str, Any]]
"""Names of the parameters, and the group's options (``lr``, ``weight_decay``, … and ``initial_lr`` if present)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """What an optimizer is made of."""

    cls: type[Optimizer] | None = None
    """None while a factory has not been called (``resolve``)."""
    groups: tuple[ParameterGroup, ...] = ()
    """Empty: one group of all trainable parameters, with the defaults."""
    factory: OptimizerFactory | None = None
    """The user's (parameters) -> Optimizer, kept after ``resolve``."""
    assumed: bool = False
    """No optimizer was given."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """``Optimizer.defaults``; only some of them are arguments of the constructor (``constructor_kwargs``)."""

    @classmethod
    def of(cls, optimizer: Optimizer | OptimizerFactory | None, model: Any) -> OptimizerSpec:
        """Read what the user handed over; nothing is called or changed.

        Args:
            optimizer: An optimizer over parameters of ``model``; a callable (parameters) -> Optimizer; or None for
                AdamW(lr=1e-3), marked as assumed.
            model: The module, or a factory of it.

        Returns:
            The spec; options hold copies of tensors, never the user's.

        Raises:
            TaskError: Neither of the three, an optimizer beside a model factory, or one of another model's parameters.
        """
        if optimizer is None:
            return cls(cls=AdamW, assumed=True, defaults={"lr": ASSUMED_LR})
        if isinstance(optimizer, Optimizer):
            return cls._of_instance(optimizer, model)
        if not callable(optimizer):
            raise TaskError(
                f"optimizer must be a torch Optimizer, a callable or None, not {type(optimizer).__name__}.",
                "Pass an Optimizer over the model's parameters, or lambda params: torch.optim.AdamW(params, lr=…).",
            )
        return cls(factory=optimizer)

    @classmethod
    def _of_instance(cls, optimizer: Optimizer, model: Any) -> OptimizerSpec:
        if not isinstance(model, nn.Module):
            raise TaskError(
                "optimizer is an Optimizer, but model is a factory: it cannot hold the parameters of a model to come.",
                "Pass a callable: optimizer=lambda params: torch.optim.AdamW(params, lr=…).",
            )
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = tuple(
            (_names(group["params"], names), {key: _copied(value) for key, value in group.items() if _is_option(key)})
            for group in optimizer.param_groups
        )
        defaults = {key: _copied(value) for key, value in optimizer.defaults.items()}
        return cls(cls=type(optimizer), groups=groups, defaults=defaults)

    def resolve(self, model: nn.Module) -> OptimizerSpec:
        """The spec with ``cls`` and ``groups`` known: calls the factory on ``model``, if there is one.

        Args:
            model: Whose parameters the factory gets; not changed.

        Returns:
            The completed spec; this very one where it already was.

        Raises:
            TaskError: The factory failed or made something else.
        """
        if self.cls is not None or self.factory is None:
            return self
        made = OptimizerSpec._of_instance(self.call_factory(model), model)
        return OptimizerSpec(cls=made.cls, groups=made.groups, factory=self.factory, defaults=made.defaults)

    def call_factory(self, model: nn.Module) -> Optimizer:
        """The optimizer that the user's factory makes of ``list(model.parameters())``.

        Args:
            model: Whose parameters it gets.

        Returns:
            A fresh optimizer, as the user wants it.

        Raises:
            TaskError: There is no factory, it failed, or it made something else.
        """
        if self.factory is None:
            raise TaskError("The optimizer was not given as a callable.", "Build it from cls and groups.")
        name = getattr(self.factory, "__qualname__", type(self.factory).__qualname__)
        try:
            made = self.factory(list(model.parameters()))
        except Exception as error:
            raise TaskError(
                f"The optimizer callable {name} raised {type(error).__name__}: {error}.",
                "It is called with the list of the model's parameters.",
            ) from error
        if not isinstance(made, Optimizer):
            raise TaskError(
                f"The optimizer callable {name} returned {type(made).__name__}.", "It must return a torch Optimizer."
            )
        return made

    def param_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups of ``model`` for the constructor: ``cls(spec.param_groups(model), **kwargs)``.

        Args:
            model: A model with the same parameter names.

        Returns:
            One dict per group: ``params`` and the group's options.

        Raises:
            TaskError: ``model`` lacks a parameter that the optimizer has.
        """
        if not self.groups:
            return [{"params": [parameter for parameter in model.parameters() if parameter.requires_grad]}]
        parameters = dict(model.named_parameters())
        missing = [name for names, _ in self.groups for name in names if name not in parameters]
        if missing:
            raise TaskError(
                f"The model has no parameter {missing[0]!r}, which the optimizer is for.",
                "Use the model that was tuned, or tune this one.",
            )
        return [
            {"params": [parameters[name] for name in names], **{key: _copied(value) for key, value in options.items()}}
            for names, options in self.groups
        ]

    def constructor_kwargs(self) -> dict[str, Any]:
        """The defaults that are arguments of the class's own constructor.

        ``cls(params, **defaults)`` fails for some classes of torch, whose defaults hold more than that.

        Returns:
            Keyword arguments; empty while the class is not known.
        """
        if self.cls is None:
            return {}
        accepted = constructor_parameters(self.cls)
        return {key: _copied(value) for key, value in self.defaults.items() if key in accepted}

    @property
    def name(self) -> str | None:
        """Name to import the class by, such as ``torch.optim.AdamW``; None while it is not known."""
        cls = self.cls
        if cls is None:
            return None
        public = getattr(torch.optim, cls.__name__, None) is cls
        return f"torch.optim.{cls.__name__}" if public else qualified_name(cls)


def constructor_parameters(cls: type[Optimizer]) -> frozenset[str]:
    """Names the constructor accepts, parents included where it passes ``**kwargs`` on.

    Args:
        cls: An optimizer class.

    Returns:
        Parameter names without ``self`` and ``params``.
    """
    accepted: set[str] = set()
    for owner in cls.__mro__:
        if owner is Optimizer:
            break
        if "__init__" not in vars(owner):
            continue
        parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
        accepted.update(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return frozenset(accepted - {"self", "params"})


def _is_option(key: str) -> bool:
    return key not in ("params", "param_names")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _names(parameters: Iterable[torch.Tensor], names: dict[int, str]) -> tuple[str, ...]:
    found = []
    for parameter in parameters:
        if id(parameter) not in names:
            raise TaskError(
                f"optimizer holds a parameter of shape {list(parameter.shape)} that the model does not have.",
                "Build it from this very model's parameters (after any copy or .to()), or pass a callable.",
            )
        found.append(names[id(parameter)])
    return tuple(found)
