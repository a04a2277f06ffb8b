"""What a tuned config does about the learning rate beside scaling it: schedules, range test, noise scale."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.optim import Optimizer

from autotune.build.optimizer import apply_to, refuse_foreign
from autotune.build.schedule import build_schedule
from autotune.config.handed_over import check_model, mark_scaled, refuse_scaled
from autotune.config.measuring import find_lr, measure_noise_scale
from autotune.config.schedule import Interval, fit_schedule, recount, rescheduled
from autotune.errors import ConfigError, SettingsError, TaskError
from autotune.learning_rate import LearningRatePlan, LrSuggestion, NoiseScale, Schedule, ScheduleKind
from autotune.task import Task

if TYPE_CHECKING:
    from autotune.config.tuned_config import TunedConfig

__all__ = ["LearningRateMethods"]


class LearningRateMethods:
    """Methods of ``TunedConfig``."""

    if TYPE_CHECKING:
        learning_rate: LearningRatePlan
        schedule: Schedule | None
        task: Task | None

    def apply_to(self, optimizer: Optimizer, scheduler: Any = None, *, scheduler_interval: Interval = "step") -> None:
        """Scales the learning rates of an optimizer of one's own, and of its schedule, in place. Call it once.

        The step counts of the schedule are made to fit the new number of optimizer steps per epoch, each change logged
        at INFO under "autotune".

        Args:
            optimizer: Every group's ``lr`` and ``initial_lr``, and its ``weight_decay`` where that is scaled.
            scheduler: Its base rates and step counts, before its first step; None: none.
            scheduler_interval: "step": it is stepped after each optimizer step, as ``train_step`` does; "epoch": it
                counts epochs, which stay what they are.

        Raises:
            TaskError: It is no optimizer, or this config has scaled its learning rates already; or the scheduler was
                stepped already, or seems to count epochs although ``scheduler_interval`` is "step".

        Warns:
            UserWarning: The scheduler's counts cannot be read (LambdaLR, classes of your own): they stay.
        """
        config = self._config
        refuse_scaled(optimizer, config)
        refuse_foreign(scheduler, optimizer)
        if scheduler is not None:
            recount(config, scheduler, scheduler_interval)
        apply_to(optimizer, scheduler, self.learning_rate.factor, self.learning_rate.weight_decay_factor)
        mark_scaled(optimizer, config)

    def scheduler(
        self,
        optimizer: Optimizer,
        epochs: int | None = None,
        *,
        kind: ScheduleKind = "onecycle",
        updates_per_epoch: int | None = None,
        **options: Any,
    ) -> Any:
        """A scheduler of ``torch.optim.lr_scheduler`` whose step counts fit batch, accumulation and epochs.

        Args:
            optimizer: As ``optimizer()`` made it; its learning rates are the highest ones.
            epochs: Epochs to train; None: the schedule that ``with_schedule`` (or the file) gave this config.
            kind: "onecycle", "cyclic", "cosine" (with warm-up), "step", "multistep" or "plateau".
            updates_per_epoch: Optimizer steps per epoch; None: from samples, batch and accumulation.
            **options: Arguments of torch's class (``pct_start``, ``gamma``, ``eta_min``, …), and in place of its counts
                ``warmup_epochs``, ``step_epochs``, ``milestone_epochs``, ``half_cycle_epochs``.

        Returns:
            To pass to ``train_step``, which steps it with the optimizer and leaves its own warm-up to a schedule that
            has one; except "plateau", on which you call ``step(figure)`` after each epoch.

        Raises:
            SettingsError: An unknown kind or option, or a count that cannot be.
            TaskError: ``updates_per_epoch`` is missing where samples or batch are not known.
            ConfigError: No ``epochs``, and this config has no schedule.
        """
        if epochs is not None:
            schedule = fit_schedule(
                self._config, optimizer, epochs=epochs, kind=kind, updates=updates_per_epoch, options=options
            )
            return build_schedule(schedule, optimizer)
        if options or updates_per_epoch is not None:
            raise SettingsError("epochs= is missing.", "Pass scheduler(optimizer, epochs, ...).")
        if self.schedule is None:
            raise ConfigError(
                "This config has no schedule.", "Pass epochs=, or give it one: tuned.with_schedule(epochs)."
            )
        return build_schedule(self.schedule, optimizer)

    def with_schedule(
        self,
        epochs: int,
        *,
        kind: ScheduleKind = "onecycle",
        updates_per_epoch: int | None = None,
        **options: Any,
    ) -> TunedConfig:
        """This config with a schedule, which its JSON holds under torch's own names; arguments as of ``scheduler``.

        Returns:
            A copy; ``keep_batch()`` of it has the same schedule, counted for its own batch.

        Raises:
            SettingsError: An unknown kind or option, or a count that cannot be.
            TaskError: ``updates_per_epoch`` is missing where samples or batch are not known.
        """
        config = self._config
        schedule = fit_schedule(config, None, epochs=epochs, kind=kind, updates=updates_per_epoch, options=options)
        same = None if config.same_batch is None else rescheduled(config.same_batch, schedule)
        return dataclasses.replace(config, schedule=schedule, same_batch=same)

    def find_lr(
        self,
        *,
        low: float = 1e-7,
        high: float = 10.0,
        steps: int = 100,
        seeds: int = 3,
        time_budget_s: float = 120.0,
        isolate: bool = True,
    ) -> LrSuggestion:
        """A learning-rate range test with these settings: where does the loss fall fastest per decade of the rate?

        Each sweep trains a copy of the task's model in a process of its own, without compilation (which changes no
        rate), one optimizer step per learning rate, until the loss diverges. Nothing of yours is changed.

        Args:
            low: Lowest learning rate.
            high: Highest.
            steps: Learning rates of a sweep, 30 or more; fewer where the time is short.
            seeds: Sweeps, each over other samples.
            time_budget_s: Seconds for all of them, about.
            isolate: False: in this process, without the protection of another.

        Returns:
            The suggestion with its spread, a word on how far to trust it, and ``.plot(path)``.

        Raises:
            TaskError: The config was loaded without a task, or the task failed.
            DoesNotFitError: The batch does not fit in memory.
        """
        facts = self._config.facts
        first = next(iter(facts.optimizer_groups), {})
        rate = first.get("initial_lr", first.get("lr", facts.optimizer_kwargs.get("lr")))
        now = rate * self.learning_rate.factor if isinstance(rate, (int, float)) else None
        return find_lr(
            self._trained("find_lr"),
            self._config.settings,
            low=low,
            high=high,
            steps=steps,
            seeds=seeds,
            time_budget_s=time_budget_s,
            isolate=isolate,
            current=lambda _: now,
        )

    def noise_scale(
        self, model: nn.Module | None = None, *, time_budget_s: float = 60.0, isolate: bool = True
    ) -> NoiseScale:
        """The simple gradient noise scale: up to about how many samples per optimizer step does a larger batch pay?

        Args:
            model: The model as trained so far, whose copy is looked at; None: the task's.
            time_budget_s: Seconds, about.
            isolate: False: in this process, without the protection of another.

        Returns:
            The noise scale with its interval; nothing of yours is changed.

        Raises:
            TaskError: The config was loaded without a task, or the task failed.
            DoesNotFitError: The batch does not fit in memory.
        """
        task = self._trained("noise_scale")
        if model is not None:
            check_model(model)
            task = copy.copy(task)
            task.model = model
        return measure_noise_scale(task, self._config.baseline, time_budget_s=time_budget_s, isolate=isolate)

    @property
    def _config(self) -> TunedConfig:
        return cast("TunedConfig", self)

    def _trained(self, doing: str) -> Task:
        if self.task is None:
            raise TaskError(
                f"task= is missing: {doing}() trains, and the config was loaded without a task.",
                "Load it with TunedConfig.load(path, task=Task(...)).",
            )
        return self.task
