"""What stands in for Lightning's Trainer and loggers while a module's own code runs without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from autotune.errors import TaskError

__all__ = ["without_trainer"]


class _QuietTrainer:
    """What steps may ask of ``self.trainer`` without one: where training stands, and loggers that keep nothing."""

    current_epoch = global_step = global_rank = local_rank = node_rank = 0
    world_size = num_nodes = num_devices = accumulate_grad_batches = 1
    is_global_zero = training = barebones = True
    sanity_checking = validating = testing = predicting = fast_dev_run = False
    progress_bar_callback = None

    @property
    def logger(self) -> Any:
        return _NO_LOGGER

    @property
    def loggers(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"only a Trainer has {name}", name=name, obj=self)


class _NoLogger:
    """Takes every call and keeps nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NoFolder(name) if name in _FOLDERS else self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return self


class _NoFolder(_NoLogger):
    """A logger's folder, which there is not: refused where it is made a path or a text of."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: Any) -> str:
        raise TaskError(
            f"The module asks for self.logger.{self._name}, and trials have no logger that writes anywhere.",
            f"Write files only where isinstance(self.logger.{self._name}, str), or pass training_step=(model, batch) "
            "-> loss that does without.",
        )

    __fspath__ = __str__ = __format__ = __truediv__ = __add__ = _refuse


_NO_LOGGER = _NoLogger()
_FOLDERS = ("log_dir", "save_dir", "root_dir")


def _ignored(*_: Any, **__: Any) -> None:
    """In place of ``log``, ``log_dict`` and ``print``."""


_QUIET: Mapping[str, Any] = {"_trainer": _QuietTrainer(), "log": _ignored, "log_dict": _ignored, "print": _ignored}
_MISSING = object()


@contextlib.contextmanager
def without_trainer(modules: list[nn.Module], *, not_run: Callable[[nn.Module], tuple[str, ...]]) -> Iterator[None]:
    """Code of modules may run as if a Trainer trained them that keeps nothing; afterwards they are as before.

    Args:
        modules: The first is the one whose code runs.
        not_run: Which hooks of a module a Trainer would have run before.

    Raises:
        TaskError: It asked for what only a Trainer has, or for an attribute that a hook not run may make.
    """
    # Straight into the instance's dict: the setters of nn.Module cost more than the step of a small model.
    before = [(vars(module), {key: vars(module).get(key, _MISSING) for key in _QUIET}) for module in modules]
    for attributes, _ in before:
        attributes.update(_QUIET)
    try:
        yield
    except AttributeError as error:
        name = type(modules[0]).__name__
        hooks = not_run(modules[0])
        if not isinstance(error.obj, _QuietTrainer) and hooks:
            raise TaskError(
                f"{name} failed: {str(error).rstrip('.')}. What only a Trainer runs may make it, and did not run: "
                f"{', '.join(hooks)}.",
                "Make in __init__ what the step uses, call the hook before handing the module over, or pass "
                "training_step=(model, batch) -> loss that does without.",
            ) from error
        if not isinstance(error.obj, _QuietTrainer):
            raise
        raise TaskError(
            f"{name} asks for self.trainer.{error.name}, which only a real Trainer has.",
            "Pass training_step=(model, batch) -> loss or optimizer=(params) -> Optimizer that does without.",
        ) from error
    finally:
        for attributes, kept in before:
            for key, value in kept.items():
                if value is _MISSING:
                    attributes.pop(key, None)
                else:
                    attributes[key] = value
