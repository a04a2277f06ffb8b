"""``autotune()``: every argument in one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from autotune.api.story import tune
from autotune.config import TunedConfig
from autotune.hardware import Hardware
from autotune.learning_rate import LrScaling, WeightDecayScaling
from autotune.report.narrator import ProgressOption
from autotune.space import Space
from autotune.task import Task

__all__ = ["autotune"]


def autotune(
    model: Any,
    dataset: Any = None,
    *,
    loss_fn: Callable[..., Any] | None = None,
    training_step: Callable[..., Any] | None = None,
    optimizer: Any = None,
    base_batch_size: int | None = None,
    effective_batch_size: int | Literal["keep"] | None = None,
    max_batch_size: int | None = None,
    max_effective_batch_size: int | Literal["noise-scale"] | None = None,
    memory_margin: float = 0.05,
    max_grad_norm: float | None = None,
    lr_scaling: LrScaling | None = "linear",
    weight_decay_scaling: WeightDecayScaling | None = None,
    collate_fn: Callable[..., Any] | None = None,
    sampler: Any = None,
    shuffle: bool | None = None,
    device: Any = None,
    space: Space | None = None,
    time_budget_s: float = 120.0,
    storage: Any = None,
    study_name: str | None = None,
    seed: int = 0,
    isolate: bool = True,
    cache: bool = True,
    progress: ProgressOption = None,
    hardware: Hardware | None = None,
) -> TunedConfig:
    """Measures real training steps here and returns the fastest settings that could be proven.

    Args:
        model: ``nn.Module``, or a factory ``() -> nn.Module``. A ``LightningModule`` (or its class) brings its
            ``training_step`` and ``configure_optimizers`` along, a Hugging Face ``Trainer`` its model,
            ``compute_loss``, optimizer, loader and arguments.
        dataset: Dataset, iterable dataset, a factory of either, or your own DataLoader: its sampler, collate_fn,
            generator, … are kept, and its settings are the baseline; of a ``LightningDataModule`` that it trains on.
            Only with a ``Trainer``: None for its ``train_dataset``.
        loss_fn: ``(output, target) -> scalar``. None: inferred, for measuring only.
        training_step: ``(model, batch) -> loss`` or ``(loss, weight)``, for everything else.
        optimizer: Optimizer, ``(params) -> Optimizer``, or None for AdamW with lr 1e-3 (assumed, and said).
        base_batch_size: Batch the learning rate was chosen for; None: the DataLoader's, else 32.
        effective_batch_size: Samples per optimizer step, locked to a number, or to what it was ("keep"); None: free
            up to ``max_effective_batch_size``.
        max_batch_size: Cap on the micro-batch.
        max_effective_batch_size: Cap on the effective batch; None: 8 times the base, or len(dataset) // 20 if less.
            "noise-scale": that, or the gradient noise scale at the weights given, if less; a tenth of the time budget
            goes into measuring it.
        memory_margin: Share of the memory to leave free, 0 to below 1.
        max_grad_norm: Clip gradients to this norm.
        lr_scaling: "linear", "sqrt", "auto" or None: how the learning rate follows the effective batch.
        weight_decay_scaling: None: weight decay stays as it is. "timescale": it follows the batch so that its pull per
            epoch stays what it was; under the linear rule that changes nothing below the cap.
        collate_fn: For a dataset; as in DataLoader.
        sampler: For a dataset; as in DataLoader.
        shuffle: For a dataset; None: True for map-style data without a sampler.
        device: Where to train; None: the accelerator if there is one, else the CPU.
        space: Your own limits on what may be tried.
        time_budget_s: Wall time aimed at, seconds, start-up (2 to 4 s) included; from 15 s on it is kept within
            10 %. A race takes 7 s at least.
        storage: Optuna storage (URL, journal file or object); None keeps the study in memory.
        study_name: Continue or name a study in ``storage``; what its earlier runs found fastest is tried first, as
            far as it is allowed now.
        seed: Seeds everything random in the trials.
        isolate: Measure in a process of its own. False: in this one, without its protection.
        cache: Answers of earlier calls with the same task, machine and rules are kept in the user's cache folder, and
            returned within seconds after one safe step; not where ``storage`` is given, since that study goes on. Where
            none fits, the search starts from what is stored for this task on a machine like this one. False: neither
            looked up nor kept. ``AUTOTUNE`` in the environment wins: ``off`` returns the baseline
            unmeasured, ``cached`` the stored answer or else the baseline with a warning, ``force`` always tunes.
        progress: None: a live line if stderr is a terminal; False: silent; a callable gets each ``Progress``.
        hardware: A record to use in place of detecting it, such as ``dataclasses.replace(Hardware.detect(),
            ram_available_bytes=2**32)``: trials get 90 % of that, ``cores`` and ``shm_bytes`` bound the loader.

    Returns:
        The tuned config: settings, evidence, and builders for loader, optimizer and train step.

    Raises:
        SettingsError: An argument cannot be.
        TaskError: The task cannot be trained as handed over.
        DoesNotFitError: Not even a batch of one fits in memory.
        SandboxError: The process for the trials could not be started.
    """
    task = Task(
        model,
        dataset,
        loss_fn=loss_fn,
        training_step=training_step,
        optimizer=optimizer,
        base_batch_size=base_batch_size,
        max_grad_norm=max_grad_norm,
        collate_fn=collate_fn,
        sampler=sampler,
        shuffle=shuffle,
        device=device,
    )
    return tune(
        task,
        effective_batch_size=effective_batch_size,
        max_batch_size=max_batch_size,
        max_effective_batch_size=max_effective_batch_size,
        memory_margin=memory_margin,
        lr_scaling=lr_scaling,
        weight_decay_scaling=weight_decay_scaling,
        space=space,
        time_budget_s=time_budget_s,
        storage=storage,
        study_name=study_name,
        seed=seed,
        isolate=isolate,
        cache=cache,
        progress=progress,
        hardware=hardware,
    )
