"""What tuned settings ask for, item by item; each is either taken by a dialect or listed as not expressed.

A dialect takes items by name. What it does not take is left over, and what is left over is told: nothing can be
forgotten by forgetting to write a line.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from autotune.config.saved_task import is_torch_optimizer
from autotune.errors import ConfigError
from autotune.export.record import NotExpressed, TaskSource

if TYPE_CHECKING:
    from autotune.config import TunedConfig

__all__ = ["Wanted", "as_words"]

_LOADER_DEFAULTS: Mapping[str, Any] = {
    "batch_size": 1,
    "shuffle": False,
    "num_workers": 0,
    "prefetch_factor": 2,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "pin_memory": False,
    "drop_last": False,
    "timeout": 0,
    "in_order": True,
}
_CODE_OF_THE_USERS = (
    "collate_fn",
    "sampler",
    "batch_sampler",
    "generator",
    "worker_init_fn",
    "loss_fn",
    "training_step",
)
_BRING_IT = "an object of yours, which no text can hold: hand it over as before"
_STEP_FLAGS = ("foreach", "fused")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    value: Any
    shown: str
    quiet: bool
    """It is what torch does anyway, so that a dialect without a word for it loses nothing."""


class Wanted:
    """The items of one config.

    Args:
        tuned: The config.
        source: The code that its task comes from; None: not known.
    """

    def __init__(self, tuned: TunedConfig, source: TaskSource | None = None) -> None:
        self.tuned = tuned
        self.source = source
        self.document = tuned.to_json()
        self.device: str = self.document["autocast"]["device_type"]
        self._items = dict(_items(self.document))
        self._open = dict.fromkeys(self._items)
        self._reasons: dict[str, str] = {}

    @property
    def makes_optimizer(self) -> bool:
        """Whether the optimizer is a class of torch's over one group of parameters."""
        return is_torch_optimizer(self.get("optimizer")) and not self.asked("param_groups")

    def take(self, name: str, default: Any = None) -> Any:
        """The value of an item, which is thereby expressed; ``default`` where it is not asked for.

        Args:
            name: Of the item.
            default: For a config without it.
        """
        self._open.pop(name, None)
        return self.get(name, default)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an item, which stays unexpressed.

        Args:
            name: Of the item.
            default: For a config without it.
        """
        item = self._items.get(name)
        return default if item is None else item.value

    def take_all(self, prefix: str) -> dict[str, Any]:
        """The items whose names begin with ``prefix``, without it, and without what torch does anyway.

        Args:
            prefix: Of the names.
        """
        names = [name for name in self._items if name.startswith(prefix)]
        taken = {name[len(prefix) :]: self.take(name) for name in names}
        return {name: value for name, value in taken.items() if not self._items[prefix + name].quiet}

    def asked(self, name: str) -> bool:
        """Whether an item is more than what torch does anyway.

        Args:
            name: Of the item.
        """
        item = self._items.get(name)
        return item is not None and not item.quiet

    def cannot(self, name: str, reason: str) -> None:
        """Say why an item is not, or only roughly, expressed; nothing happens where it is not asked for.

        Args:
            name: Of the item, taken or not.
            reason: For ``not_expressed``.
        """
        if self.asked(name):
            self._open[name] = None
            self._reasons[name] = reason

    def insist(self, name: str, reason: str) -> None:
        """As ``cannot``, also of what torch does anyway: the dialect does something else.

        Args:
            name: Of the item, taken or not.
            reason: For ``not_expressed``.
        """
        if name in self._items:
            self._open[name] = None
            self._reasons[name] = reason

    def explain(self, reasons: Mapping[str, str]) -> None:
        """Say why items are not expressed, of those that were not taken.

        Args:
            reasons: By name.
        """
        for name, reason in reasons.items():
            if name in self._open:
                self.cannot(name, reason)

    def left(self, otherwise: str) -> tuple[NotExpressed, ...]:
        """What is not expressed.

        Args:
            otherwise: The reason where none was given.
        """
        told = [name for name in self._items if name in self._open]
        names = [name for name in told if self.asked(name) or name in self._reasons]
        return tuple(
            NotExpressed(what=self._items[name].shown, reason=self._reasons.get(name, self._reason(name, otherwise)))
            for name in names
        )

    def _reason(self, name: str, otherwise: str) -> str:
        return _BRING_IT if name in _CODE_OF_THE_USERS else otherwise


def as_words(text: str) -> str:
    """A name out of a file, which is written into code and comments: what could end either is left out.

    Args:
        text: The name.
    """
    return re.sub(r"[^\w .,:=<>()\[\]-]", "", " ".join(text.split()))


def _items(document: Mapping[str, Any]) -> Iterator[tuple[str, _Item]]:
    for name, value in document["dataloader"].items():
        yield name, _item(name, value, quiet=value is None or value == _LOADER_DEFAULTS.get(name))
    yield from _step_items(document)
    yield from _optimizer_items(document)
    for entry in document["not_portable"]:
        what, _, name = entry.partition(": ")
        if what in _CODE_OF_THE_USERS:
            yield what, _Item(value=as_words(name), shown=as_words(entry), quiet=False)


def _step_items(document: Mapping[str, Any]) -> Iterator[tuple[str, _Item]]:
    knobs, steps = document["settings"], document["gradient_accumulation_steps"]
    yield "gradient_accumulation_steps", _item("gradient_accumulation_steps", steps, quiet=steps == 1)
    if steps > 1 and document["task"]["reduction"] == "mean":
        shown = "exact weights of a group that is short, uneven or cut by the epoch's end"
        yield "short_group", _Item(value=True, shown=shown, quiet=False)
    yield "max_grad_norm", _item("max_grad_norm", document["max_grad_norm"], quiet=document["max_grad_norm"] is None)
    yield "precision", _item("precision", knobs["precision"], quiet=knobs["precision"] == "fp32")
    for name in ("channels_last", "cudnn_benchmark", "activation_checkpointing", "length_grouped"):
        yield name, _item(name, knobs[name], quiet=not knobs[name])
    for name in ("num_threads", "compile_mode"):
        yield name, _item(name, knobs[name], quiet=knobs[name] is None)
    blocks = knobs["compile_mode"] is not None and knobs["compile_scope"] == "blocks"
    yield "compile_scope", _item("compile_scope", knobs["compile_scope"], quiet=not blocks)


def _optimizer_items(document: Mapping[str, Any]) -> Iterator[tuple[str, _Item]]:
    optimizer = document["optimizer"]
    kwargs = dict(optimizer["kwargs"])
    flags = {name: kwargs.pop(name, None) for name in _STEP_FLAGS}
    lr, groups, warmup = kwargs.pop("lr", None), optimizer["param_groups"], optimizer["warmup_steps"]
    yield "optimizer", _item("optimizer", optimizer["name"], quiet=False)
    yield "learning_rate", _item("learning_rate", lr, quiet=lr is None)
    yield "warmup_steps", _item("warmup_steps", warmup, quiet=not warmup)
    shown = f"the options of {len(groups)} parameter groups"
    yield "param_groups", _Item(value=groups, shown=shown, quiet=not groups)
    implementation = document["settings"]["optimizer_implementation"] or _implementation(flags)
    yield "optimizer_implementation", _item("optimizer_implementation", implementation, quiet=implementation is None)
    defaults = _defaults(optimizer["name"])
    for name, value in kwargs.items():
        if not name.isidentifier():  # it is written into code
            raise ConfigError(f"The optimizer's argument {name!r} is no name.", "Write a new config with save().")
        plain = tuple(value) if isinstance(value, list) else value
        known = f"optimizer.{name}"
        yield known, _item(known, value, quiet=name in defaults and defaults[name] == plain)


def _item(name: str, value: Any, *, quiet: bool) -> _Item:
    return _Item(value=value, shown=f"{name}={value!r}", quiet=quiet)


def _implementation(flags: Mapping[str, Any]) -> str | None:
    if flags["fused"]:
        return "fused"
    if flags["foreach"]:
        return "foreach"
    return None if flags["fused"] is None and flags["foreach"] is None else "for-loop"


def _defaults(name: str) -> dict[str, Any]:
    """The defaults of a class of ``torch.optim``; of others nothing is known."""
    module, _, simple = name.rpartition(".")
    cls = getattr(torch.optim, simple, None) if module == "torch.optim" else None
    return {} if cls is None else {p.name: p.default for p in inspect.signature(cls).parameters.values()}
