"""Lightning: a callback that tunes before ``fit`` and sets what the Trainer has not begun to use.

When a callback's ``setup`` runs, the model is still on the CPU and nothing is loaded: loader, accumulation and
precision are set there, before ``configure_optimizers`` asks how many steps there will be. In ``on_fit_start`` the
model is whole and on its device, and the optimizers exist: memory format, compilation, learning rates and warm-up are
set there. An optimizer steps by the implementation its module gave it, which cannot be changed and is not searched.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from torch.utils.data import DataLoader

from autotune.api.story import tune as tune_task
from autotune.build import apply_switches, prepare_model
from autotune.config import TunedConfig
from autotune.errors import TaskError
from autotune.integrations.warm_up import WarmUp
from autotune.settings import Settings
from autotune.space import Space
from autotune.task import Task

__all__ = ["AutotuneCallback"]

_logger = logging.getLogger("autotune")

_PRECISIONS = {"32-true": "fp32", "bf16-mixed": "bf16-mixed", "16-mixed": "fp16-mixed"}
_MIXED = {"bf16-mixed": "bf16-mixed", "fp16-mixed": "16-mixed"}
_OPTIMIZER_STAYS = "the optimizer is the module's own, whose implementation cannot be changed once it is made"


class AutotuneCallback(Callback):
    """Tunes a module on its own data before ``trainer.fit``, and trains it with what was found.

    ``Trainer(callbacks=[AutotuneCallback(time_budget_s=120)])`` is all there is to write. After ``fit`` has begun,
    ``tuned`` holds the config and ``not_applied`` what of it a Trainer cannot be given.

    Args:
        tuned: Settings found before, or the file they are in; None: tune now.
        tune: ``(task, **options) -> TunedConfig``, in place of the tuner.
        **options: Those of ``autotune()`` that say how to tune, such as ``time_budget_s``; the task is the Trainer's.
    """

    def __init__(
        self,
        tuned: TunedConfig | str | os.PathLike[str] | None = None,
        *,
        tune: Callable[..., TunedConfig] = tune_task,
        **options: Any,
    ) -> None:
        is_config = tuned is None or isinstance(tuned, TunedConfig)
        self.tuned: TunedConfig | None = tuned if is_config else TunedConfig.load(tuned)  # type: ignore[assignment, arg-type]
        self.not_applied: tuple[str, ...] = ()
        self._tune, self._options = tune, {"cache": True, **options}
        self._applied = False
        self._warm_up: WarmUp | None = None
        self._steps_before = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str | None = None) -> None:
        """Tune, and set what feeds the model; a module that is made in hooks of its own has to wait for them.

        Args:
            trainer: Whose loops are to be set.
            pl_module: What it trains.
            stage: Only "fit" is tuned.

        Raises:
            TaskError: This Trainer cannot be given tuned settings; the message says why.
        """
        if stage != "fit":
            return
        _refuse(trainer)
        self._applied = False  # each fit attaches its loader anew
        if self.tuned is not None or not _made_in_hooks(pl_module):
            self._apply(trainer, pl_module)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prepare the model, scale the learning rates of optimizers and schedules, and start the warm-up.

        Args:
            trainer: Whose optimizers are to be set.
            pl_module: What it trains.

        Warns:
            UserWarning: A schedule has counted the steps of the loader before tuning.
        """
        if not self._applied:
            if trainer.fit_loop._combined_loader is not None:
                warnings.warn(
                    "configure_optimizers() has asked for the number of steps before tuning, which needed the module's "
                    "setup(): a schedule that uses it counts those of the former loader.",
                    UserWarning,
                    stacklevel=1,
                )
            self._apply(trainer, pl_module)
        assert self.tuned is not None
        prepare_model(pl_module, self.tuned.settings, trainer.strategy.root_device)
        self._set_learning_rates(trainer, self.tuned)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the optimizer without hooks.

        Args:
            trainer: The one that is done.
            pl_module: What it trained.
        """
        if self._warm_up is not None:
            self._steps_before = self._warm_up.done
            self._warm_up.close()
            self._warm_up = None

    def state_dict(self) -> dict[str, Any]:
        """Steps of the warm-up that are done, for a run that is resumed."""
        return {"optimizer_steps": self._steps_before if self._warm_up is None else self._warm_up.done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Args:
            state_dict: Of an earlier run.
        """
        self._steps_before = int(state_dict["optimizer_steps"])
        if self._warm_up is not None:
            self._warm_up.done = self._steps_before

    def _apply(self, trainer: Trainer, module: LightningModule) -> None:
        loader = _loader(trainer)
        if self.tuned is None:
            self.tuned = self._tune(_task(trainer, module, loader), **self._with_limits())
        settings = self.tuned.settings
        device = trainer.strategy.root_device
        if self.tuned.saved.device_type != device.type:
            raise TaskError(
                f"The config was tuned for {self.tuned.saved.device_type!r}, the Trainer trains on {device.type!r}.",
                "Tune for the device that is trained on.",
            )
        for change in apply_switches(settings):
            _logger.info("AutotuneCallback has set for the whole process: %s", change)
        trainer.fit_loop._data_source.instance = self.tuned.dataloader(loader)
        trainer.fit_loop._combined_loader = None
        trainer.accumulate_grad_batches = settings.gradient_accumulation_steps
        trainer.strategy.precision_plugin = _precision(settings, device.type)
        if self.tuned.max_grad_norm is not None:
            trainer.gradient_clip_val = self.tuned.max_grad_norm
        self._applied = True
        self._say_what_is_left(settings)

    def _with_limits(self) -> dict[str, Any]:
        if "space" in self._options:
            return self._options
        return {**self._options, "space": Space(optimizer_implementation=[None])}

    def _say_what_is_left(self, settings: Settings) -> None:
        left = []
        if settings.optimizer_implementation is not None:
            left.append(f"optimizer_implementation={settings.optimizer_implementation!r}: {_OPTIMIZER_STAYS}")
        if settings.gradient_accumulation_steps > 1:
            left.append("the weights of short groups: Lightning divides every loss by the full number of batches")
        self.not_applied = tuple(left)
        for one in left:
            _logger.warning("AutotuneCallback could not apply %s", one)

    def _set_learning_rates(self, trainer: Trainer, tuned: TunedConfig) -> None:
        plan = tuned.learning_rate
        if plan.factor != 1 and trainer.ckpt_path is not None:
            warnings.warn(
                f"Training goes on from {trainer.ckpt_path!r}, whose learning rates replace those scaled by "
                f"{plan.factor:g}: right only if it was written under the tuned settings.",
                UserWarning,
                stacklevel=1,
            )
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        for optimizer in trainer.optimizers:
            own = [one for one in schedulers if getattr(one, "optimizer", None) is optimizer]
            # Its counts stay: the schedule was made with the tuned loader in place, or counts epochs.
            tuned.apply_to(optimizer, own[0] if own else None, scheduler_interval="epoch")
        if plan.warmup_steps and len(trainer.optimizers) == 1:
            self._warm_up = WarmUp(
                trainer.optimizers[0], steps=plan.warmup_steps, factor=plan.factor, done=self._steps_before
            )


def _refuse(trainer: Trainer) -> None:
    """What would make measured and trained differ, or be overwritten by the Trainer later."""
    if trainer.world_size > 1:
        raise TaskError(f"The Trainer runs {trainer.world_size} processes.", "Tune with one device, then export.")
    reloaded = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    if reloaded and trainer.fit_loop._data_source.is_module():
        raise TaskError(
            "reload_dataloaders_every_n_epochs would replace the tuned loader by the module's own.", "Set it to 0."
        )
    schedulers = [one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]  # type: ignore[attr-defined]
    if any(set(one.scheduling) != {0} or one.scheduling[0] != 1 for one in schedulers):
        raise TaskError(
            "A GradientAccumulationScheduler sets the accumulation anew in each epoch.",
            "Leave it out: the accumulation is tuned.",
        )
    if type(trainer.precision_plugin) not in (Precision, MixedPrecision):
        raise TaskError(
            f"Trainer(precision={trainer.precision!r}) converts the model itself, which is not measured.",
            "Use precision='32-true'; whether to train in bf16-mixed or 16-mixed is one of the things tuned.",
        )


def _made_in_hooks(module: LightningModule) -> bool:
    return any(
        getattr(type(module), name) is not getattr(LightningModule, name) for name in ("setup", "configure_model")
    )


def _loader(trainer: Trainer) -> DataLoader[Any]:
    loader = trainer.fit_loop._data_source.dataloader()
    if not isinstance(loader, DataLoader):
        raise TaskError(
            f"The module trains on {type(loader).__name__}, not on one DataLoader.", "Several loaders cannot be tuned."
        )
    return loader


def _task(trainer: Trainer, module: LightningModule, loader: DataLoader[Any]) -> Task:
    """The module on its loader, the Trainer's own settings being the baseline."""
    steps = trainer.accumulate_grad_batches
    by_norm = trainer.gradient_clip_algorithm is None or str(trainer.gradient_clip_algorithm).endswith("norm")
    task = Task(
        module,
        loader,
        base_batch_size=loader.batch_size * steps if loader.batch_size and steps > 1 else None,
        max_grad_norm=trainer.gradient_clip_val if trainer.gradient_clip_val and by_norm else None,
        device=str(trainer.strategy.root_device),
    )
    precision = _PRECISIONS[str(trainer.precision_plugin.precision)]
    task.trains_with = {"gradient_accumulation_steps": steps, "precision": precision}
    return task


def _precision(settings: Settings, device_type: str) -> Precision:
    mixed = _MIXED.get(settings.precision)
    return Precision() if mixed is None else MixedPrecision(mixed, device=device_type)  # type: ignore[arg-type]
