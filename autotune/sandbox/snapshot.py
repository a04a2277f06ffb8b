"""What trials in the caller's own process change, kept and put back bit for bit."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotune.sandbox.flags import TorchFlags
from autotune.task.layers import without_overlap

__all__ = ["Snapshot"]


class Snapshot:
    """Tensors, modes, random states, switches, environment variables and warning filters as they were.

    Args:
        modules: Modules whose parameters, buffers, gradients and modes are kept.
        optimizers: Optimizers whose state and options are kept.
        generators: Random generators whose states are kept, besides the global ones.
    """

    def __init__(
        self, modules: list[nn.Module], optimizers: list[torch.optim.Optimizer], generators: list[torch.Generator]
    ) -> None:
        self._random = _RandomStates(generators)  # first: nothing below may draw a number, but user code might
        self._flags = TorchFlags.capture()
        self._environment = dict(os.environ)
        self._filters, self._filter_list = list(warnings.filters), warnings.filters
        self._start_method = multiprocessing.get_start_method(allow_none=True)
        seen: dict[int, _TensorState] = {}  # tied parameters are kept once
        self._modules = [_ModuleState(module, seen) for root in modules for module in root.modules()]
        self._optimizers = [_OptimizerState(optimizer) for optimizer in optimizers]

    @classmethod
    def of(cls, task: object) -> Snapshot:
        """Keeps what belongs to ``task``: its model, and the optimizers and generators it holds.

        Args:
            task: An object; its attributes, and those of dataclasses and samplers among them, are looked through.
        """
        values = list(_values(task))
        return cls(
            modules=[value for value in values if isinstance(value, nn.Module)],
            optimizers=[value for value in values if isinstance(value, torch.optim.Optimizer)],
            generators=[value for value in values if isinstance(value, torch.Generator)],
        )

    def restore(self) -> None:
        """Puts everything back: the same objects, over the same memory, with the same contents."""
        for module in self._modules:
            module.restore()
        for optimizer in self._optimizers:
            optimizer.restore()
        self._flags.apply()
        _restore_environment(self._environment)
        self._restore_filters()
        # Workers settle an undecided start method, after which the caller could no longer choose one.
        multiprocessing.set_start_method(self._start_method, force=True)
        self._random.restore()

    def _restore_filters(self) -> None:
        if warnings.filters is self._filter_list and warnings.filters == self._filters:
            return
        warnings.filters = self._filter_list
        warnings.simplefilter("default")  # tells the interpreter that decisions it remembers no longer hold
        warnings.filters[:] = self._filters  # type: ignore[index]


def _restore_environment(before: dict[str, str]) -> None:
    for name in set(os.environ) - set(before):
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _values(task: object) -> Iterator[Any]:
    for value in vars(task).values():
        yield value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
            yield from fields
            for field in fields:
                inner = getattr(field, "sampler", None)  # a batch sampler's
                yield from (getattr(field, "generator", None), getattr(inner, "generator", None))


class _TensorState:
    """One tensor: its object, memory and contents; the copy lies in host memory."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._memory = tensor.detach()
        self._copy = self._memory.to("cpu", copy=True)
        self._requires_grad = tensor.requires_grad

    def restore(self) -> None:
        with torch.no_grad():
            without_overlap(self._memory).copy_(without_overlap(self._copy, like=self._memory))
        if not _same_memory(self.tensor, self._memory):
            self.tensor.data = self._memory  # was moved to a device, or into another memory format
        if self.tensor.requires_grad != self._requires_grad:
            self.tensor.requires_grad_(self._requires_grad)


def _same_memory(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.layout != torch.strided:  # a sparse gradient: never moved, only replaced
        return True
    return first.data_ptr() == second.data_ptr() and first.stride() == second.stride()


@dataclass(slots=True)
class _Slot:
    """One parameter or buffer of a module, with its gradient."""

    owner: dict[str, Any]
    name: str
    state: _TensorState | None
    gradient: _TensorState | None

    @classmethod
    def of(cls, owner: dict[str, Any], name: str, seen: dict[int, _TensorState]) -> _Slot:
        tensor = owner[name]
        if tensor is None or tensor.device.type == "meta":
            return cls(owner, name, None, None)
        gradient = tensor.grad if tensor.is_leaf else None
        if id(tensor) not in seen:
            seen[id(tensor)] = _TensorState(tensor)
        state = seen[id(tensor)]
        return cls(owner, name, state, None if gradient is None else _TensorState(gradient))

    def restore(self) -> None:
        if self.state is None:
            return
        tensor = self.state.tensor
        if tensor.is_leaf:
            tensor.grad = None  # one of the wrong device or shape would refuse the old memory
        self.state.restore()
        if self.gradient is not None:
            self.gradient.restore()
            tensor.grad = self.gradient.tensor
        self.owner[self.name] = tensor


class _ModuleState:
    def __init__(self, module: nn.Module, seen: dict[int, _TensorState]) -> None:
        self._module, self._training = module, module.training
        # A forward pass may make them from attributes that were None.
        self._attributes = dict(vars(module))
        self._held = [dict(owner) for owner in _owners(module)]
        owners: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        self._slots = [_Slot.of(owner, name, seen) for owner in owners for name in owner]

    def restore(self) -> None:
        self._module.training = self._training
        for live, kept in zip(_owners(self._module), self._held, strict=True):
            for name in (live.keys() - kept.keys()) & self._attributes.keys():
                vars(self._module).setdefault(name, self._attributes[name])
            live.clear()
            live.update(kept)
        for slot in self._slots:
            slot.restore()


def _owners(module: nn.Module) -> tuple[dict[str, Any], ...]:
    return module._parameters, module._buffers, module._modules


class _OptimizerState:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._options = [dict(group) for group in optimizer.param_groups]
        self._entries = {parameter: dict(entry) for parameter, entry in optimizer.state.items()}
        self._tensors = [
            _TensorState(value)
            for entry in self._entries.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor)
        ]

    def restore(self) -> None:
        for group, options in zip(self._optimizer.param_groups, self._options, strict=True):
            group.clear()
            group.update(options)
        self._optimizer.state.clear()
        for parameter, entry in self._entries.items():
            self._optimizer.state[parameter] = dict(entry)
        for tensor in self._tensors:
            tensor.restore()


class _RandomStates:
    """Of python, numpy (where loaded), torch, every initialised accelerator, and the generators given."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()
        self._torch = torch.get_rng_state()
        self._devices = {name: getattr(torch, name).get_rng_state_all() for name in _initialised()}
        self._mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        self._generators = [(generator, generator.get_state()) for generator in generators]

    def restore(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        for name, states in self._devices.items():
            getattr(torch, name).set_rng_state_all(states)
        if self._mps is not None:
            torch.mps.set_rng_state(self._mps)
        for generator, state in self._generators:
            generator.set_state(state)


def _initialised() -> list[str]:
    return [name for name in ("cuda", "xpu") if getattr(torch, name).is_initialized()]
