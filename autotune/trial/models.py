"""Model instances for trials, all starting from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from autotune.errors import TaskError
from autotune.settings import Settings
from autotune.task import Task
from autotune.task.layers import without_overlap

__all__ = ["ModelPool"]

_Key = tuple[bool, str | None, str, bool]


class ModelPool:
    """Lends models with pristine weights, buffers and modes; a used one is reset in place and lent again.

    Args:
        task: Its model (or factory) is the first instance.
        fresh: Makes another, independent copy of the task; None: there is only the one model (in-process runs).
    """

    def __init__(self, task: Task, fresh: Callable[[], Task] | None) -> None:
        self._fresh = fresh
        self._first: nn.Module | None = task.build_model()
        self._pristine = _Pristine(self._first)
        self._free: dict[_Key, list[nn.Module]] = {}

    @property
    def only_one(self) -> bool:
        """Whether two settings cannot hold a model at the same time."""
        return self._fresh is None

    @property
    def model(self) -> nn.Module:
        """The first instance, for questions that change nothing; only before anything was lent."""
        if self._first is None:
            raise TaskError("The first model was lent already.", "")
        return self._first

    def take(self, settings: Settings) -> nn.Module:
        """A model in its initial state, never compiled or converted for other settings than these."""
        free = self._free.get(_key(settings))
        if free:
            model = free.pop()
        elif self._first is not None and self._usable(self._first):
            model, self._first = self._first, None
        elif self._fresh is not None:
            model, self._first = self._fresh().build_model(), None
        else:
            model = self._any_free()
        self._pristine.restore(model)
        return model

    def give_back(self, model: nn.Module, settings: Settings) -> None:
        """Takes an intact model back."""
        if not self._usable(model):
            return
        model.zero_grad(set_to_none=True)
        models = self._free.setdefault(_key(settings), [])
        if not models or self.only_one:
            models.append(model)

    def failed(self, model: nn.Module, settings: Settings) -> None:
        """Takes back a model in whose use something failed: it is lent again only where there is no other."""
        if self.only_one:
            self.give_back(model, settings)

    def clear(self) -> None:
        """Drops all free models (to give their memory back)."""
        if not self.only_one:
            self._free.clear()

    def _usable(self, model: nn.Module) -> bool:
        """Not where a forward pass has added tensors, and there is another copy: only a new one makes them anew."""
        return self.only_one or not self._pristine.added(model)

    def _any_free(self) -> nn.Module:
        for models in self._free.values():
            if models:
                return models.pop().to(memory_format=torch.contiguous_format)
        raise TaskError(
            "The model is in use by another setting and there is no second copy of it.",
            "Use isolate=True, or pass a factory () -> nn.Module.",
        )


class _Pristine:
    """Parameters, buffers and modes of a model as it came, kept in host memory."""

    def __init__(self, model: nn.Module) -> None:
        copies: dict[int, torch.Tensor] = {}  # tied tensors are kept once
        self._kept = {place: _copied(owner, copies) for place, owner in _owners(model)}
        self._modes = {name: module.training for name, module in model.named_modules()}
        if not self._modes[""]:  # handed over in eval mode as a whole: training starts with model.train()
            self._modes = dict.fromkeys(self._modes, True)

    def added(self, model: nn.Module) -> bool:
        """Whether the model holds parameters or buffers that it came without."""
        return any(owner.keys() - self._kept.get(place, {}).keys() for place, owner in _owners(model))

    @torch.no_grad()
    def restore(self, model: nn.Module) -> None:
        for place, owner in _owners(model):
            _put_back(owner, self._kept.get(place, {}))
        for name, module in model.named_modules():
            module.training = self._modes.get(name, True)
        model.zero_grad(set_to_none=True)


def _owners(model: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where modules hold their own tensors, each by a name of its own."""
    for name, module in model.named_modules():
        yield f"{name} parameters", module._parameters
        yield f"{name} buffers", module._buffers


def _copied(owner: dict[str, Any], copies: dict[int, torch.Tensor]) -> dict[str, Any]:
    for tensor in owner.values():
        if tensor is not None and id(tensor) not in copies:
            copies[id(tensor)] = tensor.detach().to("cpu", copy=True)
    return {name: None if tensor is None else copies[id(tensor)] for name, tensor in owner.items()}


def _put_back(owner: dict[str, Any], kept: dict[str, Any]) -> None:
    """Over the same memory where that can be: a forward pass may have replaced, resized or removed a buffer."""
    for name, value in kept.items():
        live = owner.get(name)
        if value is None:
            owner[name] = None
        elif live is not None and live.shape == value.shape and live.dtype == value.dtype:
            without_overlap(live).copy_(without_overlap(value, like=live))
        elif isinstance(live, nn.Parameter):
            live.data = value.to(live.device, copy=True)
        else:
            owner[name] = value.to("cpu" if live is None else live.device, copy=True)


def _key(settings: Settings) -> _Key:
    return settings.channels_last, settings.compile_mode, settings.compile_scope, settings.activation_checkpointing
