"""Lightning's modules and data modules: their own step, optimizer and training data, run without a Trainer.

Lightning is recognised by the names of its classes and never imported here: whoever has such an object has imported it.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.errors import TaskError
from autotune.task.quiet_trainer import without_trainer

__all__ = [
    "LightningOptimizer",
    "LightningStep",
    "TrainDataLoader",
    "check_automatic",
    "has_own",
    "hooks_not_run",
    "is_data_module",
    "is_lightning_module",
    "unmeasured_hooks",
]

_PACKAGES = ("lightning", "pytorch_lightning")
_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_LOOP_HOOKS = (
    "setup",
    "configure_model",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
)
_MAKING_HOOKS = (
    "prepare_data",
    "setup",
    "configure_model",
    "configure_sharded_model",
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
)
"""In which modules make what their steps use."""


def is_lightning_module(model: Any) -> bool:
    """Whether a model, or what a factory of one is known to make, is a ``LightningModule``.

    Args:
        model: A module, a class, or a ``functools.partial`` of one; of other factories nothing is known.
    """
    return _base(_class_of(model), "LightningModule") is not None


def is_data_module(data: Any) -> bool:
    """Whether ``data`` is a ``LightningDataModule``.

    Args:
        data: What the user handed over as a dataset.
    """
    return not isinstance(data, type) and _base(type(data), "LightningDataModule") is not None


def has_own(model: Any, method: str) -> bool:
    """Whether the class of a ``LightningModule`` implements a method instead of inheriting Lightning's.

    Args:
        model: As for ``is_lightning_module``.
        method: Its name.
    """
    cls = _class_of(model)
    return getattr(cls, method, None) is not getattr(_base(cls, "LightningModule"), method, None)


def check_automatic(module: Any) -> None:
    """Refuse manual optimization, whose steps only the module's own loop knows.

    Args:
        module: A ``LightningModule``.

    Raises:
        TaskError: ``automatic_optimization`` is off.
    """
    if not module.automatic_optimization:
        raise TaskError(
            f"{type(module).__name__} optimizes manually (automatic_optimization=False): its training_step steps the "
            "optimizer itself, so that neither the batch nor the accumulation can be set for it.",
            "Use automatic optimization, or pass training_step=(model, batch) -> loss and optimizer=.",
        )


def unmeasured_hooks(model: Any, data: Any) -> str:
    """A sentence on what a Trainer would do around the step and trials do not.

    Args:
        model: The ``LightningModule``.
        data: What was handed over as a dataset.
    """
    hooks = [name for name in _LOOP_HOOKS if has_own(model, name)]
    if is_data_module(data):
        base = _base(type(data), "LightningDataModule")
        hooks += [name for name in _TRANSFER_HOOKS if getattr(type(data), name) is not getattr(base, name)]
    named = f"its hooks {', '.join(hooks)}, " if hooks else ""
    return (
        f"Of {_class_of(model).__name__}, training_step and optimizer are measured, without {named}schedules, "
        "callbacks, loggers and the Trainer's own settings: give it the tuned ones."
    )


def hooks_not_run(model: Any) -> tuple[str, ...]:
    """The hooks of a module's own that a Trainer runs before the first step, and trials do not.

    Args:
        model: Any module.
    """
    return tuple(name for name in _MAKING_HOOKS if is_lightning_module(model) and has_own(model, name))


class LightningStep:
    """``(module, batch) -> loss``: the module's own ``training_step``, with nothing logged."""

    def __init__(self) -> None:
        self._batches = 0
        self._inner: WeakKeyDictionary[nn.Module, list[nn.Module]] = WeakKeyDictionary()

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """The loss of ``batch``.

        Args:
            model: The ``LightningModule``.
            batch: On its device.

        Returns:
            What ``training_step`` returned, or the ``"loss"`` in it.

        Raises:
            TaskError: It returned None, or asked for what only a Trainer has.
        """
        cls: Any = type(model)
        step: Any = model.training_step
        with without_trainer([model, *self._modules_inside(model)], not_run=hooks_not_run):
            for hook in _TRANSFER_HOOKS:
                if has_own(model, hook):
                    place = (model.device,) if hook == "transfer_batch_to_device" else ()
                    batch = getattr(model, hook)(batch, *place, 0)
            returned = step(batch, self._batches) if _takes_index(cls.training_step) else step(batch)
        self._batches += 1
        if isinstance(returned, Mapping):
            returned = returned.get("loss")
        if returned is None:
            raise TaskError(
                f"training_step of {type(model).__name__} returned no loss, by which Lightning skips a batch.",
                "A skipped batch cannot be measured: return a loss for every batch, or pass training_step=.",
            )
        return returned

    def _modules_inside(self, model: nn.Module) -> list[nn.Module]:
        if model not in self._inner:
            inside = [module for module in model.modules() if module is not model and is_lightning_module(module)]
            self._inner[model] = inside
        return self._inner[model]

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        LightningStep.__init__(self)


class LightningOptimizer:
    """``(module) -> Optimizer``: the one of ``configure_optimizers``, at the rate from which its schedule starts."""

    def __init__(self) -> None:
        self.__qualname__ = "configure_optimizers"  # as errors call it

    def __call__(self, model: nn.Module) -> Optimizer:
        """The optimizer.

        Args:
            model: The ``LightningModule``.

        Raises:
            TaskError: There is none, there are several, or it asks for what only a Trainer has.
        """
        configure: Any = model.configure_optimizers
        with without_trainer([model], not_run=hooks_not_run):
            returned = configure()
        found = list(_optimizers(returned))
        if len(found) != 1:
            what = f"{len(found)} optimizers" if found else "no optimizer"
            raise TaskError(
                f"configure_optimizers of {type(model).__name__} returned {what}.",
                "One optimizer can be tuned: return one with several parameter groups, or pass optimizer=.",
            )
        for group in found[0].param_groups:  # a schedule with warm-up has set it to next to nothing
            group["lr"] = group.get("initial_lr", group["lr"])
        return found[0]


class TrainDataLoader:
    """``() -> DataLoader``: the one a data module trains on, prepared and set up as a Trainer does it.

    Args:
        data_module: A ``LightningDataModule``.
    """

    def __init__(self, data_module: Any) -> None:
        # A copy, so that neither the caller's Trainer comes along nor setup() changes what the caller holds.
        self.data_module = _copied(data_module)
        self.data_module.trainer = None
        self.__module__ = type(data_module).__module__
        self.__qualname__ = f"{type(data_module).__qualname__}.train_dataloader"

    def __call__(self) -> DataLoader[Any]:
        """The loader.

        Raises:
            TaskError: The data module trains on several loaders, or on something else.
        """
        module = self.data_module
        module.prepare_data()
        module.setup("fit")
        made = module.train_dataloader()
        if not isinstance(made, DataLoader):
            raise TaskError(
                f"train_dataloader of {type(module).__name__} returned {type(made).__name__}, not one DataLoader.",
                "Pass a DataLoader that yields what the training step gets.",
            )
        return made


def _copied(data_module: Any) -> Any:
    """With containers of its own, which ``setup`` may fill; what they hold is shared."""
    made = copy.copy(data_module)
    containers = {id(value): copy.copy(value) for value in vars(made).values() if type(value) in (dict, list, set)}
    vars(made).update({name: containers.get(id(value), value) for name, value in vars(made).items()})
    return made


def _optimizers(returned: Any) -> Iterator[Optimizer]:
    """Those in any form that ``configure_optimizers`` may return."""
    if isinstance(returned, Optimizer):
        yield returned
    elif isinstance(returned, Mapping):
        yield from _optimizers(returned.get("optimizer"))
    elif isinstance(returned, (list, tuple)):
        for item in returned:  # schedulers, beside them or in a list of their own, are neither of these
            yield from _optimizers(item)


@functools.lru_cache(maxsize=64)
def _takes_index(step: Any) -> bool:
    _, *parameters = inspect.signature(step).parameters.values()
    return len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _class_of(model: Any) -> type:
    if isinstance(model, functools.partial):
        model = model.func
    return model if isinstance(model, type) else type(model)


def _base(cls: Any, name: str) -> type | None:
    return _cached_base(cls, name)


@functools.lru_cache(maxsize=256)
def _cached_base(cls: Any, name: str) -> type | None:
    return next((c for c in cls.__mro__ if c.__name__ == name and c.__module__.partition(".")[0] in _PACKAGES), None)
