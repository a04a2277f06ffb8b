"""``TunedConfig``: the answer of a tuning run, and the builders that train with it."""

from __future__ import annotations

import dataclasses
import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.build.loader import build_loader
from autotune.build.model import prepare_model
from autotune.build.optimizer import build_optimizer
from autotune.build.schedule import warms_up
from autotune.build.switches import apply_switches, switches
from autotune.build.train_step import TrainStep
from autotune.config.choice import document_for_here
from autotune.config.code import training_code
from autotune.config.document import config_document, config_fields
from autotune.config.evidence import Evidence
from autotune.config.file import write_document
from autotune.config.handed_over import (
    check_file,
    check_model,
    check_task,
    mark_scaled,
    warn_of_other_task,
)
from autotune.config.ingredients import data_for, loss_for, optimizer_for
from autotune.config.learning_rate_methods import LearningRateMethods
from autotune.config.saved_task import SavedTask, data_as_measured
from autotune.config.schedule import rescheduled
from autotune.config.summary import summary
from autotune.errors import ConfigError
from autotune.hardware import Hardware
from autotune.learning_rate import LearningRatePlan, Schedule
from autotune.settings import Settings
from autotune.task import Facts, LoaderParts, Task

__all__ = ["TunedConfig"]

_logger = logging.getLogger("autotune")


@dataclass(frozen=True, kw_only=True, eq=False)
class TunedConfig(LearningRateMethods):
    """Settings that were measured, why they were chosen, and builders that train with them.

    The builders are those that the trials ran. A config loaded from a file without ``task`` has no dataset, loss or
    custom classes: what a builder lacks it asks for by name.
    """

    settings: Settings
    """The knobs to train with."""
    baseline: Settings
    """The knobs they were raced against."""
    learning_rate: LearningRatePlan
    """What happens to every learning rate."""
    facts: Facts = field(repr=False)
    """What was found out about the task by running it."""
    hardware: Hardware | Mapping[str, Any] = field(repr=False)
    """Where it was measured; JSON values where the config was loaded."""
    evidence: Evidence
    """What was measured, and how sure it is."""
    max_grad_norm: float | None = None
    """Norm to which gradients are clipped; None: no clipping."""
    task: Task | None = field(default=None, repr=False)
    """The task; None where the config was loaded without it."""
    same_batch: TunedConfig | None = field(default=None, repr=False)
    """The fastest settings with the baseline's effective batch; see ``keep_batch``."""
    stored: SavedTask | None = field(default=None, repr=False)
    """What the file says about the task; None where the config was not loaded."""
    schedule: Schedule | None = None
    """The learning-rate schedule that ``with_schedule`` gave; None: none."""

    def __post_init__(self) -> None:
        if self.task is None:
            _ = self._stored  # raises where neither is there

    def prepare(self, model: nn.Module) -> nn.Module:
        """Makes a model and this process ready for training.

        Sets the process-wide switches (and logs each at INFO under "autotune"), then moves, lays out and compiles
        the model in place; the keys of its ``state_dict`` stay as they are.

        Args:
            model: The model to train; also one that was prepared before.

        Returns:
            The same model.

        Raises:
            TaskError: ``model`` is no module.
            ConfigError: The settings are for a device this machine does not have.

        Warns:
            UserWarning: The config was loaded, and this machine or the task is another than it was tuned on or for.
        """
        check_model(model)
        self._check_hardware()
        self._check_task_once(model)
        device = self._device()
        for change in apply_switches(self.settings):
            _logger.info("prepare() has set for the whole process: %s", change)
        return prepare_model(model, self.settings, device)

    def dataloader(self, dataset: Any = None, *, train: bool = True) -> DataLoader[Any]:
        """A plain DataLoader with the tuned settings; ``length_grouped`` reads every sample once for its length.

        Args:
            dataset: Dataset or DataLoader to read instead of the tuned one; a DataLoader keeps its own sampler,
                collate_fn and the like. None: the tuned one.
            train: False: every sample once, in order, for validation.

        Returns:
            The loader.

        Raises:
            TaskError: The config was loaded without a task and ``dataset`` (or its collate_fn) is missing, or the
                tuned sampler is needed for another dataset.
        """
        tuned = None if self.task is None else self._resolved
        data = data_for(dataset, tuned, self.saved, train=train)
        return build_loader(data, self.settings, has_batch_norm=self.facts.has_batch_norm, train=train)

    def optimizer(self, model: nn.Module) -> Optimizer:
        """A fresh optimizer over a model, learning rates scaled, step implementation chosen.

        Args:
            model: As returned by ``prepare``.

        Returns:
            The optimizer, without state.

        Raises:
            TaskError: The config was loaded without a task and the optimizer is not one of ``torch.optim``, or has
                several parameter groups.
        """
        spec = self.task.optimizer if self.task is not None else optimizer_for(self.facts)
        check_model(model)
        plan = self.learning_rate
        optimizer = build_optimizer(
            spec, model, self.settings, lr_factor=plan.factor, weight_decay_factor=plan.weight_decay_factor
        )
        mark_scaled(optimizer, self)
        return optimizer

    def train_step(
        self, model: nn.Module, optimizer: Optimizer, scheduler: Any = None, loss_fn: Any = None
    ) -> TrainStep:
        """The training step that was measured: ``loss = step(batch)``, and ``step.flush()`` at an epoch's end.

        Args:
            model: As returned by ``prepare``.
            optimizer: Over its parameters.
            scheduler: Stepped once per optimizer step; one that starts below its highest rate (OneCycleLR, CyclicLR, a
                LinearLR first) takes the place of the step's own warm-up. None: none.
            loss_fn: (output, target) -> 0-dim loss, in place of the task's.

        Returns:
            The step.

        Raises:
            TaskError: There is no loss to train with: it was guessed for measuring only, or the config was loaded
                without a task.
        """
        loss = loss_for(self.task, self.saved, self.facts, model, loss_fn)
        return TrainStep(
            model,
            optimizer,
            loss=loss,
            settings=self.settings,
            device=self._device(),
            reduction=loss.reduction,
            scheduler=scheduler,
            max_grad_norm=self.max_grad_norm,
            warmup_steps=0 if warms_up(scheduler) else self.learning_rate.warmup_steps,
            lr_factor=self.learning_rate.factor,
            promised_samples_per_s=self.evidence.samples_per_s,
        )

    def switches(self) -> AbstractContextManager[list[str]]:
        """The process-wide switches inside a ``with`` block, the former ones afterwards."""
        return switches(self.settings)

    def keep_batch(self) -> TunedConfig:
        """The fastest proven settings with the baseline's effective batch, so that training stays the same.

        Returns:
            This config where its effective batch is the baseline's; the baseline where nothing else was proven.
        """
        if self.settings.effective_batch_size == self.baseline.effective_batch_size:
            return self
        if self.same_batch is not None:
            return self.same_batch
        evidence = dataclasses.replace(
            self.evidence,
            kept_baseline=True,
            reason="Baseline kept: nothing else with its effective batch was proven faster.",
            speedup=None,
            samples_per_s=self.evidence.baseline_samples_per_s,
        )
        plan = LearningRatePlan(factor=1.0, rule="none", capped=False, warmup_steps=0, notes=())
        return self._with(self.baseline, plan, evidence)

    def code(self) -> str:
        """At most 15 lines of plain torch that train with these settings, to paste into one's own loop."""
        return training_code(self.to_json(), self.saved, self.facts.batch_signature)

    def to_json(self) -> dict[str, Any]:
        """The config as JSON values in a stable order; the shipped ``config_schema.json`` describes each."""
        return config_document(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any], task: Task | None = None) -> TunedConfig:
        """The config ``to_json`` gave.

        Args:
            document: Its JSON values.
            task: The task, so that the builders lack nothing; None: what they lack is asked for by name.

        Raises:
            ConfigError: The document is not one of this release.
            TaskError: ``task`` is no ``Task``.
        """
        return cls._from_document(document, task, "document")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the config as JSON: the whole file or none.

        Args:
            path: File in an existing folder; an older one is replaced.

        Raises:
            ConfigError: The file cannot be written; what was there before is untouched.
        """
        write_document(self.to_json(), check_file(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], task: Task | None = None) -> TunedConfig:
        """Reads a config; nothing but JSON is read, and no code named in it is run.

        Args:
            path: A file that ``save`` wrote; of a store (a file or folder of several), this machine's entry is taken.
            task: The task, so that the builders lack nothing; None: what they lack is asked for by name.

        Raises:
            ConfigError: The file is missing, damaged, or of a newer release; a store has no entry for this machine
                (the nearest are listed, with what differs).
            TaskError: ``task`` is no ``Task``.

        Warns:
            UserWarning: The config was tuned for another task (said by ``prepare`` where a factory has to be called),
                or under another patch release of torch (of a store).
        """
        where = check_file(path)
        config = cls._from_document(document_for_here(where, task), task, where)
        if task is not None and isinstance(task.model, nn.Module) and task.data.dataset is not None:
            config._check_task_once(task.model)
        return config

    def __str__(self) -> str:
        return summary(self)

    @cached_property
    def saved(self) -> SavedTask:
        """The task as JSON can hold it. A dataset factory is called only if it made a whole DataLoader."""
        if self.task is None:
            return self._stored
        made_loader = self.task.data.dataset is None and self.facts.loader.get("given")
        data = self._resolved if made_loader else data_as_measured(self.task.data, self.facts)
        return SavedTask.of(self.task, data, self.settings, self.facts, device_type=self._device_type)

    @property
    def _stored(self) -> SavedTask:
        if self.stored is None:
            raise ConfigError("A TunedConfig needs a task, or what a file says about one.", "Pass task=.")
        return self.stored

    @cached_property
    def _resolved(self) -> LoaderParts:
        if self.task is None:
            raise ConfigError("The config was loaded without a task.", "Load it with task=Task(...).")
        return self.task.data.resolve()

    @property
    def _device_type(self) -> str:
        if self.task is not None and self.task.device is not None:
            return torch.device(self.task.device).type
        if self.stored is not None:
            return self.stored.device_type
        if isinstance(self.hardware, Hardware) and self.hardware.accelerator is not None:
            return self.hardware.accelerator.type
        return "cpu"

    def _device(self) -> torch.device:
        kind = self._device_type
        there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if kind not in ("cpu", None if there is None else there.type):
            raise ConfigError(
                f"The config was tuned for {kind!r}, which this machine does not have.", "Tune again on this machine."
            )
        return torch.device(self.task.device if self.task is not None and self.task.device is not None else kind)

    def _check_task_once(self, model: nn.Module) -> None:
        if self.task is not None and "_task_checked" not in self.__dict__:
            self.__dict__["_task_checked"] = True
            warn_of_other_task(self, self.task, model, stacklevel=4)

    def _check_hardware(self) -> None:
        if isinstance(self.hardware, Mapping) and self.hardware["fingerprint"] != Hardware.detect().fingerprint:
            warnings.warn(
                "The config was tuned on another machine (its hardware fingerprint differs): it will train, but "
                "other settings may be faster here. Tune again on this machine.",
                UserWarning,
                stacklevel=3,
            )

    def _with(self, settings: Settings, plan: LearningRatePlan, evidence: Evidence) -> TunedConfig:
        stored = None if self.stored is None else self.stored.with_settings(settings, self.facts)
        other = dataclasses.replace(
            self, settings=settings, learning_rate=plan, evidence=evidence, same_batch=None, stored=stored
        )
        return rescheduled(other, self.schedule)

    @classmethod
    def _from_document(cls, document: Mapping[str, Any], task: Task | None, where: str) -> TunedConfig:
        check_task(task)
        fields = config_fields(document, where)
        same = fields.pop("same_batch")
        return cls(**fields, task=task, same_batch=None if same is None else cls(**same, task=task))
