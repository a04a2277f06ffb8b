"""Hugging Face: a ``Trainer`` that has been made is tuned, and its arguments are replaced by what was found."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from autotune.api.story import tune as tune_task
from autotune.build import apply_switches
from autotune.config import TunedConfig
from autotune.errors import TaskError
from autotune.export.hf import training_arguments
from autotune.export.record import NotExpressed
from autotune.export.wanted import Wanted
from autotune.space import Space
from autotune.task import Task
from autotune.task.hf_trainer import is_hf_trainer

__all__ = ["autotune_trainer"]

_logger = logging.getLogger("autotune")

T = TypeVar("T")

_ALLOWED: dict[str, list[Any]] = {
    "channels_last": [False],
    "compile_mode": [None],
    "activation_checkpointing": [False],
    "multiprocessing_context": [None],
    "optimizer_implementation": [None],
}
"""What the search is kept to where the caller gives no space: what a Trainer can be given and does as measured."""
_KEPT = (
    *("optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    "use_cpu",  # where it trains is settled
)
"""Arguments that the Trainer has already, and that tuning does not change."""


def autotune_trainer(
    trainer: T,
    tuned: TunedConfig | str | os.PathLike[str] | None = None,
    *,
    tune: Callable[..., TunedConfig] = tune_task,
    **options: Any,
) -> tuple[T, TunedConfig]:
    """Tunes what a ``Trainer`` trains, and sets its arguments: batch, accumulation, loader, precision, rate, warm-up.

    Process-wide switches (threads, cuDNN) are set for the whole process. What of the config a Trainer cannot be given
    is logged as a warning under "autotune".

    Args:
        trainer: A ``transformers.Trainer`` whose ``train()`` has not been called.
        tuned: Settings found before, or the file they are in; None: tune now.
        tune: ``(task, **options) -> TunedConfig``, in place of the tuner.
        **options: Those of ``autotune()`` that say how to tune, such as ``time_budget_s``; the task is the Trainer's.

    Returns:
        The same Trainer, and the config.

    Raises:
        TaskError: It is no Trainer, runs in several processes, or did not take the settings; it is then as before.
    """
    _refuse(trainer)
    if tuned is not None and not isinstance(tuned, TunedConfig):
        tuned = TunedConfig.load(tuned)
    if tuned is None:
        options = {"space": Space(**_ALLOWED), "cache": True, **options}
        untyped: Any = trainer
        tuned = tune(Task(untyped), **options)
    _apply(trainer, tuned)
    return trainer, tuned


def _apply(trainer: Any, tuned: TunedConfig) -> None:
    mark = (tuned.facts.fingerprint, tuned.evidence.created)
    if getattr(trainer, "_autotuned_with", None) == mark:
        raise TaskError("The Trainer has these settings already.", "Its learning rate would be scaled once more.")
    wanted = Wanted(tuned)
    arguments = {name: value for name, value in training_arguments(wanted).items() if name not in _KEPT}
    if not arguments.get("tf32"):
        arguments.pop("tf32", None)  # fp32 leaves the caller's flags
    if tuned.max_grad_norm is None:
        arguments.pop("max_grad_norm")
    implementation = tuned.settings.optimizer_implementation
    if implementation == "fused" and trainer.args.optim == "adamw_torch":
        arguments["optim"] = "adamw_torch_fused"
    elif implementation is not None:
        wanted.insist("optimizer_implementation", "the Trainer makes its optimizer by args.optim")
    arguments["learning_rate"] = trainer.args.learning_rate * tuned.learning_rate.factor
    _keep_longer_warm_up(trainer.args, arguments)
    device = trainer.args.device.type
    if tuned.saved.device_type != device:
        raise TaskError(
            f"The config was tuned for {tuned.saved.device_type!r}, the Trainer trains on {device!r}.",
            "Tune for the device that is trained on.",
        )
    before = trainer.args
    trainer.args = dataclasses.replace(before, **arguments)
    trainer._train_batch_size = trainer.args.train_batch_size
    _renew_accelerator(trainer, before)
    trainer._autotuned_with = mark
    _scale_what_was_handed_over(trainer, tuned)
    for change in apply_switches(tuned.settings):
        _logger.info("autotune_trainer() has set for the whole process: %s", change)
    for name in ("num_threads", "cudnn_benchmark", "optimizer", "learning_rate", "loss_fn", "training_step"):
        wanted.take(name)
    for one in _left(wanted):
        _logger.warning("autotune_trainer() could not apply %s", one)


def _left(wanted: Wanted) -> tuple[NotExpressed, ...]:
    own = ("collate_fn", "sampler", "batch_sampler", "generator", "worker_init_fn", "param_groups")
    for name in own:
        wanted.take(name)  # the Trainer's, and still there
    wanted.take_all("optimizer.")
    return wanted.left("the Trainer has no argument for it")


def _keep_longer_warm_up(args: Any, arguments: dict[str, Any]) -> None:
    """The Trainer's own warm-up stays where it is the longer one; a share of all steps is such a one."""
    own = args.warmup_steps or 0
    if own and (own < 1 or own >= arguments.get("warmup_steps", 0)):
        arguments.pop("warmup_steps", None)


def _renew_accelerator(trainer: Any, before: Any) -> None:
    """Another Accelerator: its precision is fixed when it is made, and new arguments clear the state it shares."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()
    trainer.create_accelerator_and_postprocess()
    if trainer.accelerator.mixed_precision != trainer.args.mixed_precision:
        wanted = trainer.args.mixed_precision
        trainer.args = before
        trainer._train_batch_size = before.train_batch_size
        AcceleratorState._reset_state()
        trainer.create_accelerator_and_postprocess()
        raise TaskError(f"The Trainer's Accelerator did not take the precision {wanted!r}.", "Set it in its arguments.")


def _scale_what_was_handed_over(trainer: Any, tuned: TunedConfig) -> None:
    """An optimizer that the Trainer was given does not look at ``learning_rate``."""
    if trainer.optimizer is not None:
        tuned.apply_to(trainer.optimizer, trainer.lr_scheduler)
    given = getattr(trainer, "optimizer_cls_and_kwargs", None)
    if given is not None and "lr" in given[1]:
        cls, kwargs = given
        trainer.optimizer_cls_and_kwargs = (cls, {**kwargs, "lr": kwargs["lr"] * tuned.learning_rate.factor})


def _refuse(trainer: Any) -> None:
    if not is_hf_trainer(trainer):
        raise TaskError(f"{type(trainer).__name__} is no Trainer of transformers.", "Use autotune() for anything else.")
    if trainer.state.global_step > 0:
        raise TaskError("The Trainer has trained already, with optimizer and schedule made.", "Tune before train().")
    if trainer.args.world_size > 1:
        raise TaskError(
            f"The Trainer runs in {trainer.args.world_size} processes.", "Tune in one, then export the config."
        )
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise TaskError("The Trainer hands its training to DeepSpeed or FSDP, which are not measured.", "Use export.")
    if trainer.args.n_gpu > 1:
        raise TaskError(f"The Trainer spreads batches over {trainer.args.n_gpu} devices.", "Show it one of them.")
    if trainer.args.auto_find_batch_size:
        raise TaskError("auto_find_batch_size would replace the tuned batch.", "Set it to False.")
