"""What a saved config keeps of the task it was tuned for: names and loader arguments, no objects."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils.data import IterableDataset

from autotune.build.loader import loader_arguments
from autotune.settings import Settings
from autotune.task import Facts, LoaderParts, Task

__all__ = ["LossSource", "SavedTask", "data_as_measured", "is_torch_optimizer"]

LossSource = Literal["loss_fn", "training_step", "model", "guess"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTask:
    """The task as JSON can hold it."""

    name: str
    """For people."""
    loss: LossSource
    """Where the loss comes from; a guess was good for measuring only."""
    reduction: Literal["mean", "sum"]
    """Whether the loss is a mean over the rows of a batch or their sum."""
    device_type: str
    """Device type the settings are for: "cpu", "cuda", ..."""
    dataloader: Mapping[str, Any]
    """Arguments for ``DataLoader(dataset, **dataloader)``."""
    not_portable: tuple[str, ...]
    """What JSON cannot hold, as "what: qualified.name"."""

    @classmethod
    def of(cls, task: Task, data: LoaderParts, settings: Settings, facts: Facts, *, device_type: str) -> SavedTask:
        """What is kept of a live task under ``settings``.

        Args:
            task: The task.
            data: Its data, resolved or ``data_as_measured``.
            settings: The knobs to train with.
            facts: What is known of the task.
            device_type: Device type the settings are for.
        """
        return cls(
            name=task.name,
            loss=_loss_source(task, facts),
            reduction=facts.reduction,
            device_type=device_type,
            dataloader=loader_arguments(data, settings, has_batch_norm=facts.has_batch_norm),
            not_portable=_not_portable(task, data, facts),
        )

    def with_settings(self, settings: Settings, facts: Facts) -> SavedTask:
        """A copy for other knobs, of a task that is known from a file only."""
        data = data_as_measured(LoaderParts(), facts)
        arguments = loader_arguments(data, settings, has_batch_norm=facts.has_batch_norm)
        return dataclasses.replace(self, dataloader=arguments)


def data_as_measured(data: LoaderParts, facts: Facts) -> LoaderParts:
    """The data with a stand-in of equal length for a dataset that has not been made: enough to say how to load it.

    Args:
        data: The data; a dataset that is there is kept.
        facts: What was found out when it was made.
    """
    if data.dataset is not None:
        return data
    dataset = _Stream(facts.samples) if facts.iterable else range(facts.samples or 0)
    return dataclasses.replace(data, **facts.loader, dataset=dataset, dataset_factory=None)


def is_torch_optimizer(name: str) -> bool:
    """Whether a qualified name is a class directly in ``torch.optim``: the only ones built from JSON."""
    module, _, simple = name.rpartition(".")
    return module == "torch.optim" and simple.isidentifier() and simple[0].isupper()


class _Stream(IterableDataset[Any]):
    """Yields nothing; has a length only if the real one has."""

    def __init__(self, samples: int | None) -> None:
        self._samples = samples

    def __len__(self) -> int:
        if self._samples is None:
            raise TypeError("the stream's length is not known")
        return self._samples

    def __iter__(self) -> Iterator[Any]:
        return iter(())


def _loss_source(task: Task, facts: Facts) -> LossSource:
    if task.training_step is not None:
        return "training_step"
    if task.loss_fn is not None:
        return "loss_fn"
    return "guess" if facts.loss_inferred else "model"


def _not_portable(task: Task, data: LoaderParts, facts: Facts) -> tuple[str, ...]:
    objects = {
        "collate_fn": data.collate_fn,
        "sampler": data.sampler,
        "batch_sampler": data.batch_sampler,
        "generator": data.generator,
        "worker_init_fn": data.worker_init_fn,
        "loss_fn": task.loss_fn,
        "training_step": task.training_step,
    }
    found = [f"{what}: {_qualified_name(value)}" for what, value in objects.items() if value is not None]
    if not is_torch_optimizer(facts.optimizer_name):
        found.append(f"optimizer: {facts.optimizer_name}")
    elif len(facts.optimizer_groups) > 1:
        found.append(f"optimizer: the {len(facts.optimizer_groups)} parameter groups of {facts.optimizer_name}")
    return tuple(found)


def _qualified_name(value: object) -> str:
    if isinstance(value, functools.partial):
        return f"functools.partial of {_qualified_name(value.func)}"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"
