"""Hugging Face's ``Trainer``: its own loss, optimizer, loader and arguments, run without its loop.

It is recognised by the name of its class and never imported here: whoever has such an object has imported it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, RandomSampler

from autotune.errors import TaskError
from autotune.task.dataset import length
from autotune.task.loader_parts import LoaderParts
from autotune.task.names import qualified_name
from autotune.task.optimizer_spec import OptimizerSpec

__all__ = ["TrainerLoss", "TrainerOptimizer", "TrainerParts", "is_hf_trainer"]

_LOOP_ONLY = (
    "optimizer",
    "lr_scheduler",
    "train_dataset",
    "eval_dataset",
    "model",
    "model_wrapped",
    "callback_handler",
)
"""What a Trainer holds for its loop; heavy, or full of what trials must not touch."""
_NOT_IN_BASELINE = ("torch_compile", "gradient_checkpointing", "neftune_noise_alpha", "deepspeed", "fsdp")
"""Arguments that only ``Trainer.train()`` acts upon."""


def is_hf_trainer(value: Any) -> bool:
    """Whether ``value`` is a ``transformers.Trainer``.

    Args:
        value: What was handed over as a model.
    """
    return not isinstance(value, type) and _base(type(value)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerParts:
    """What a ``Trainer`` trains, and how."""

    model: nn.Module
    data: LoaderParts
    training_step: TrainerLoss
    optimizer: OptimizerSpec
    """Of an optimizer that was handed to the Trainer, else of the one its arguments name."""
    base_batch_size: int | None
    max_grad_norm: float | None
    device: str
    trains_with: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the baseline beyond the loader's."""
    note: str = ""

    @classmethod
    def of(cls, trainer: Any, dataset: Any = None) -> TrainerParts:
        """Take a ``Trainer`` apart; it is not changed, and nothing is run.

        Args:
            trainer: A ``transformers.Trainer``.
            dataset: To load from in place of its ``train_dataset``, or a DataLoader as it is; None: its own.

        Returns:
            The parts.

        Raises:
            TaskError: It steps by a ``training_step`` of its own, has several optimizers, or no data.
        """
        _refuse_own_step(trainer)
        arguments = trainer.args
        data = LoaderParts.of(dataset) if isinstance(dataset, DataLoader) else _data(trainer, dataset)
        steps = int(arguments.gradient_accumulation_steps)
        given = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # as accelerate wraps it
        return cls(
            model=trainer.model,
            data=data,
            training_step=TrainerLoss(trainer),
            optimizer=OptimizerSpec(factory=TrainerOptimizer(trainer), of_model=True)
            if given is None
            else OptimizerSpec.of(given, trainer.model),
            base_batch_size=data.batch_size * steps if data.batch_size else None,
            max_grad_norm=float(arguments.max_grad_norm) if arguments.max_grad_norm else None,
            device=str(arguments.device),
            trains_with={"gradient_accumulation_steps": steps, "precision": _precision(arguments)},
            note=_note(trainer),
        )


class TrainerLoss:
    """``(model, batch) -> loss or (loss, weight)``: the Trainer's ``compute_loss``, with nothing logged.

    Where the loss is a mean over the labels that count, their number is its weight, as in the Trainer's own
    accumulation.

    Args:
        trainer: Whose.
    """

    def __init__(self, trainer: Any) -> None:
        self._quiet = _quiet(trainer)
        self.__qualname__ = f"{type(trainer).__qualname__}.compute_loss"

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        """The loss of ``batch``.

        Args:
            model: The module.
            batch: On its device.

        Raises:
            TaskError: It asked for what only a running Trainer has.
        """
        quiet = self._quiet
        quiet.model = quiet.model_wrapped = model
        try:
            inputs = dict(quiet._prepare_inputs(batch))  # a copy, of which compute_loss may take labels away
            items = quiet._get_num_items_in_batch([inputs], quiet.args.device)
            loss = quiet.compute_loss(model, inputs, num_items_in_batch=items)
        except AttributeError as error:
            if not isinstance(error.obj, _QuietAccelerator) and error.obj is not quiet:
                raise
            raise TaskError(
                f"{self.__qualname__} asks for {error.name}, which only a running Trainer has.",
                "Pass training_step=(model, batch) -> loss that does without.",
            ) from error
        finally:
            quiet.model = quiet.model_wrapped = None
        return loss if items is None else (loss, items)


class TrainerOptimizer:
    """``(model) -> Optimizer``: the one of the Trainer's arguments, with its parameter groups.

    Args:
        trainer: Whose.
    """

    def __init__(self, trainer: Any) -> None:
        self._quiet = _quiet(trainer)
        self.__qualname__ = f"{type(trainer).__qualname__}.create_optimizer"  # as errors call it

    def __call__(self, model: nn.Module) -> Optimizer:
        """A fresh optimizer.

        Args:
            model: Whose parameters it is for.
        """
        quiet = copy.copy(self._quiet)
        quiet.model = model
        made: Optimizer = quiet.create_optimizer() or quiet.optimizer
        return made


class _QuietAccelerator:
    """What a loss or a loader may ask of ``self.accelerator`` in one process."""

    num_processes = 1
    process_index = local_process_index = 0
    is_main_process = is_local_main_process = sync_gradients = True
    parallelism_config = None

    def __init__(self, device: Any) -> None:
        self.device = device

    def prepare(self, *parts: Any) -> Any:
        return parts[0] if len(parts) == 1 else parts

    def unwrap_model(self, model: nn.Module, *_: Any, **__: Any) -> nn.Module:
        return model

    def gather(self, tensor: Any) -> Any:
        return tensor


def _quiet(trainer: Any) -> Any:
    """A copy of the Trainer without its loop, which logs and writes nothing."""
    quiet = copy.copy(trainer)
    for name in _LOOP_ONLY:
        setattr(quiet, name, None)
    quiet.accelerator = _QuietAccelerator(trainer.args.device)
    quiet.log = quiet.log_metrics = quiet.save_metrics = quiet.save_model = quiet.push_to_hub = _ignored
    return quiet


def _ignored(*_: Any, **__: Any) -> None:
    """In place of what logs, saves and uploads."""


def _data(trainer: Any, dataset: Any) -> LoaderParts:
    """The Trainer's own loader, taken apart, as it is in one process."""
    quiet = _quiet(trainer)
    quiet.model = trainer.model  # whose signature says which columns are used
    quiet.train_dataset = trainer.train_dataset if dataset is None else dataset
    if quiet.train_dataset is None:
        raise TaskError(f"{type(trainer).__name__} has no train_dataset.", "Give it one, or pass the dataset.")
    loader = quiet.get_train_dataloader()
    if not isinstance(loader, DataLoader):
        raise TaskError(
            f"get_train_dataloader of {type(trainer).__name__} returned {type(loader).__name__}, not a DataLoader.",
            "Pass a DataLoader that yields what compute_loss gets.",
        )
    parts = LoaderParts.of(loader)
    sampler: Any = loader.sampler
    plain = type(sampler) is RandomSampler and not sampler.replacement and sampler.generator is None
    if plain and sampler.num_samples == length(loader.dataset):  # of the dataset before unused columns were left out
        return dataclasses.replace(parts, sampler=None, shuffle=True)
    return parts


def _precision(arguments: Any) -> str:
    if arguments.bf16:
        return "bf16-mixed"
    return "fp16-mixed" if arguments.fp16 else "fp32"


def _refuse_own_step(trainer: Any) -> None:
    cls = type(trainer)
    if cls.training_step is not getattr(_base(cls), "training_step"):  # noqa: B009 - a type without it, for mypy
        raise TaskError(
            f"{qualified_name(cls)} has a training_step of its own, which also computes the gradients: neither the "
            "batch nor the accumulation can be set for it.",
            "Override compute_loss instead, or pass training_step=(model, batch) -> loss.",
        )


def _note(trainer: Any) -> str:
    name, arguments = type(trainer).__name__, trainer.args
    ignored = [argument for argument in _NOT_IN_BASELINE if getattr(arguments, argument, None)]
    without = f" What its arguments {', '.join(ignored)} do is not part of the baseline." if ignored else ""
    return (
        f"Of {name}, compute_loss, optimizer, loader, accumulation and clipping are measured, without schedules, "
        f"callbacks, evaluation, logging and saving: give it the tuned settings.{without}"
    )


def _base(cls: type) -> type | None:
    return next((c for c in cls.__mro__ if c.__name__ == "Trainer" and c.__module__.startswith("transformers.")), None)
