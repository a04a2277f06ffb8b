"""What the user's optimizer is made of, so that an equal one can be made for another copy of the model."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from autotune.errors import AutotuneError, TaskError
from autotune.task.names import qualified_name

__all__ = ["ASSUMED_LR", "SCALED_MARK", "OptimizerFactory", "OptimizerSpec", "ParameterGroup"]

ASSUMED_LR = 1e-3
"""Learning rate of the AdamW that is assumed where no optimizer was given."""

SCALED_MARK = "autotune_scaled_by"
"""Key in parameter groups whose learning rate a tuned config has scaled; no option of the optimizer's."""
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
    of_model: bool = False
    """The factory is called with the model itself, which knows how its parameters are to be optimized."""
    assumed: bool = False
    """No optimizer was given."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """``Optimizer.defaults``; only some of them are arguments of the constructor (``constructor_kwargs``)."""
    unknown_argument: str | None = None
    """Constructor argument of unknown value, so that only the factory can make an equal optimizer."""

    @classmethod
    def of(cls, optimizer: Optimizer | OptimizerFactory | OptimizerSpec | None, model: Any) -> OptimizerSpec:
        """Read what the user handed over; nothing is called or changed.

        Args:
            optimizer: An optimizer over parameters of ``model``; a callable (parameters) -> Optimizer; None for
                AdamW(lr=1e-3), marked as assumed; or a spec already.
            model: The module, or a factory of it.

        Returns:
            The spec; options hold copies of tensors, never the user's.

        Raises:
            TaskError: Neither of the three, an optimizer beside a model factory, one of another model's parameters, one
                that needs a closure, or one whose constructor arguments cannot be told.
        """
        if isinstance(optimizer, OptimizerSpec):
            return optimizer
        if optimizer is None:
            return cls(cls=AdamW, assumed=True, defaults={"lr": ASSUMED_LR})
        if isinstance(optimizer, Optimizer):
            spec = cls._of_instance(optimizer, model)
            if spec.unknown_argument is not None:
                raise TaskError(
                    f"optimizer cannot be built again for another copy of the model: the value of the argument "
                    f"{spec.unknown_argument!r} of {type(optimizer).__name__} is in none of its parameter groups.",
                    "Pass a callable: optimizer=lambda params: "
                    f"{type(optimizer).__name__}(params, {spec.unknown_argument}=...).",
                )
            return spec
        _refuse_several(optimizer, "optimizer holds")
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
        refuse_closure(optimizer)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = tuple(
            (_names(group["params"], names), {key: _copied(value) for key, value in group.items() if _is_option(key)})
            for group in optimizer.param_groups
        )
        defaults = {key: _copied(value) for key, value in optimizer.defaults.items()}
        return cls(cls=type(optimizer), groups=groups, defaults=defaults, unknown_argument=_unknown_argument(optimizer))

    def resolve(self, model: nn.Module) -> OptimizerSpec:
        """The spec with ``cls`` and ``groups`` known: calls the factory on ``model``, if there is one.

        Args:
            model: Whose parameters the factory gets; not changed.

        Returns:
            The completed spec; this very one where it already was.

        Raises:
            TaskError: The factory failed, or made something else or an optimizer that needs a closure.
        """
        if self.cls is not None or self.factory is None:
            return self
        made = OptimizerSpec._of_instance(self.call_factory(model), model)
        return dataclasses.replace(made, factory=self.factory, of_model=self.of_model)

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
        given = "the list of the model's parameters"
        try:
            made = self.factory(model if self.of_model else list(model.parameters()))
        except AutotuneError:
            raise
        except Exception as error:
            raise TaskError(
                f"The optimizer callable {name} raised {type(error).__name__}: {error}.",
                f"It is called with {'the model' if self.of_model else given}.",
            ) from error
        _refuse_several(made, f"The optimizer callable {name} returned")
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
    return frozenset(_constructor_defaults(cls))


def refuse_closure(optimizer: Optimizer) -> None:
    """Refuse optimizers that evaluate the loss themselves, such as LBFGS.

    Args:
        optimizer: Any.

    Raises:
        TaskError: Its ``step`` has to be called with a closure.
    """
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TaskError(
            f"{type(optimizer).__name__} needs a closure, which evaluates a batch several times per step.",
            "Use an optimizer that steps on one gradient.",
        )


def _refuse_several(given: Any, subject: str) -> None:
    items = list(given.values()) if isinstance(given, Mapping) else given
    if isinstance(items, (list, tuple)) and items and all(isinstance(item, Optimizer) for item in items):
        raise TaskError(
            f"{subject} {len(items)} optimizers in a {type(given).__name__}, where one is needed.",
            "Pass one optimizer with a parameter group for each, and add the losses up in training_step.",
        )


def _constructor_defaults(cls: type[Optimizer]) -> dict[str, Any]:
    """The arguments that ``constructor_parameters`` names, each with its default."""
    accepted: dict[str, Any] = {}
    for owner in cls.__mro__:
        if owner is Optimizer:
            break
        if "__init__" not in vars(owner):
            continue
        _, *parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
        named = {p.name: p.default for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        accepted = {**_without_params(named), **accepted}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return accepted


def _without_params(named: dict[str, Any]) -> dict[str, Any]:
    """Without what takes the parameters to optimize, whatever it is called."""
    first = next(iter(named), None)
    taken = "params" if "params" in named else first if named.get(str(first)) is inspect.Parameter.empty else None
    return {name: default for name, default in named.items() if name != taken}


def _unknown_argument(optimizer: Optimizer) -> str | None:
    """A constructor argument that is not in the defaults and need not have its own default."""
    for name, default in _constructor_defaults(type(optimizer)).items():
        if name in optimizer.defaults:
            continue
        if default is inspect.Parameter.empty:
            return name
        if all(name in group for group in optimizer.param_groups):
            continue
        kept = next((vars(optimizer)[key] for key in (name, f"_{name}") if key in vars(optimizer)), default)
        if not _is_same(kept, default):
            return name
    return None


def _is_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    try:
        return bool(value == other)
    except (RuntimeError, ValueError):  # of tensors and arrays with several elements
        return False


def _is_option(key: str) -> bool:
    return key not in ("params", "param_names", SCALED_MARK)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _names(parameters: Iterable[torch.Tensor], names: dict[int, str]) -> tuple[str, ...]:
    found = []
    for parameter in parameters:
        if id(parameter) not in names:
            raise TaskError(
                f"optimizer holds a parameter of shape {list(parameter.shape)} that the model does not have.",
                "Build it from this very model's parameters (after any copy or .to()). Parameters of a loss must be "
                "the model's: make the loss a submodule of it, and compute it in its forward or in training_step.",
            )
        found.append(names[id(parameter)])
    return tuple(found)
