"""What changes in the user's training: each consequence of the chosen settings, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.learning_rate import LrRule, is_adaptive
from autotune.settings import Settings
from autotune.task.loss_weight import is_exact

if TYPE_CHECKING:
    from autotune.config.tuned_config import TunedConfig

__all__ = ["changes", "updates_per_epoch"]

_PRECISIONS = {
    "fp32": "float32 throughout, torch's own switches left as they are",
    "tf32": "float32 with TF32 matrix products (10-bit mantissa inside them)",
    "bf16-mixed": "bfloat16 autocast: losses agree with float32 to about two digits",
    "fp16-mixed": "float16 autocast with a GradScaler, which skips the step after an overflow",
}


def changes(config: TunedConfig) -> list[str]:
    """What is different from the baseline when training with a config.

    Args:
        config: Its settings against its baseline.

    Returns:
        One sentence or two per consequence, the weightiest first; a single one where nothing changes.
    """
    lines = [
        *_batch(config),
        *_updates(config),
        *_learning_rate(config),
        *_numerics(config),
        *_token_means(config),
        *_batch_norm(config),
        *_data_order(config),
        *_process_wide(config),
    ]
    return lines or ["Nothing: these are the settings of your baseline."]


def updates_per_epoch(samples: int | None, settings: Settings, *, drop_last: bool) -> int | None:
    """Optimizer steps per epoch; None for streams of unknown length and for batches of the user's own.

    Args:
        samples: Samples per epoch.
        settings: Batch and accumulation.
        drop_last: Whether the last, unfull batch is left out.
    """
    if not samples or settings.batch_size is None:
        return None
    batches = samples // settings.batch_size if drop_last else math.ceil(samples / settings.batch_size)
    return math.ceil(batches / settings.gradient_accumulation_steps)


def _batch(config: TunedConfig) -> list[str]:
    old, new = config.baseline, config.settings
    before, after = old.effective_batch_size, new.effective_batch_size
    parts = _as_parts(new)
    if before is None or after is None or before == after:
        same_parts = (old.batch_size, old.gradient_accumulation_steps) == (
            new.batch_size,
            new.gradient_accumulation_steps,
        )
        return [] if same_parts else [f"Batch: {after} samples per optimizer step as before, now {parts}."]
    return [f"Batch: {before} -> {after} samples per optimizer step ({after / before:.3g}x), {parts}."]


def _as_parts(settings: Settings) -> str:
    steps = settings.gradient_accumulation_steps
    if steps == 1:
        return f"loaded as one batch of {settings.batch_size}"
    return f"accumulated from {steps} batches of {settings.batch_size}"


def _updates(config: TunedConfig) -> list[str]:
    samples = config.facts.samples
    before = updates_per_epoch(samples, config.baseline, drop_last=False)
    after = updates_per_epoch(samples, config.settings, drop_last=_drops_last(config))
    if before is None or after is None or before == after:
        return []
    if after > before:
        return [f"Optimizer steps per epoch: {before} -> {after}."]
    return [
        f"Optimizer steps per epoch: {before} -> {after}. Fewer updates for the same data: the same number of epochs "
        "may end at another loss, so compare at the end; tuned.keep_batch() keeps the old batch. Schedules counted in "
        "steps need the new count."
    ]


def _learning_rate(config: TunedConfig) -> list[str]:
    plan = config.learning_rate
    lines = []
    if plan.factor != 1:
        base = config.facts.optimizer_kwargs.get("lr")
        values = f": {base:g} -> {base * plan.factor:g}" if isinstance(base, (int, float)) else ""
        source = _rule_source(plan.rule, config.facts.optimizer_name)
        lines.append(f"Learning rate: x{plan.factor:.3g} ({source}){values}, every parameter group.")
    if plan.warmup_steps:
        lines.append(
            f"Warm-up: the learning rate rises from the old value to the new one over the first {plan.warmup_steps} "
            f"optimizer steps{_in_epochs(config, plan.warmup_steps)}; TrainStep does it, under any scheduler but "
            "one that starts below its highest rate itself."
        )
    return [*lines, *plan.notes, *_schedule(config)]


def _rule_source(rule: LrRule, optimizer_name: str) -> str:
    if rule == "linear":
        return "linear rule, Goyal et al. 2017"
    if rule == "sqrt":
        return f"square-root rule, {'Malladi et al. 2022' if is_adaptive(optimizer_name) else 'Krizhevsky 2014'}"
    return rule


def _schedule(config: TunedConfig) -> list[str]:
    schedule = config.schedule
    if schedule is None:
        return []
    name, steps = schedule.name.rpartition(".")[2], schedule.epochs * schedule.updates_per_epoch
    stepped = "after each optimizer step" if schedule.interval == "step" else "by you, after each epoch"
    return [
        f"Schedule: {name} over {schedule.epochs} epochs of {schedule.updates_per_epoch:,} optimizer steps ({steps:,} "
        f"in all), stepped {stepped}: tuned.scheduler(optimizer)."
    ]


def _in_epochs(config: TunedConfig, steps: int) -> str:
    per_epoch = updates_per_epoch(config.facts.samples, config.settings, drop_last=_drops_last(config))
    return f" ({steps / per_epoch:.2g} epochs)" if per_epoch else ""


def _numerics(config: TunedConfig) -> list[str]:
    different = config.baseline.differences(config.settings)
    new = config.settings
    lines = []
    if "precision" in different:
        lines.append(f"Precision: {_PRECISIONS[new.precision]}.")
    last_digits = {
        "channels_last": "the memory format",
        "compile_mode": "torch.compile (with other random numbers in dropout)",
        "optimizer_implementation": f"the {new.optimizer_implementation} optimizer step",
        "cudnn_benchmark": "cudnn.benchmark",
        "num_threads": "the number of threads",
    }
    if new.activation_checkpointing:
        lines.append(
            "Activation checkpointing: repeated blocks run forward twice, which saves memory; random layers in them "
            "draw the same numbers both times."
        )
    causes = [text for knob, text in last_digits.items() if knob in different]
    if causes:
        lines.append(f"Numbers may differ in their last digits through {', '.join(causes)}.")
    return lines


def _batch_norm(config: TunedConfig) -> list[str]:
    old, new = config.baseline, config.settings
    if not config.facts.has_batch_norm or new.batch_size is None:
        return []
    if new.gradient_accumulation_steps > 1:
        return [
            f"BatchNorm: its statistics come from each batch of {new.batch_size}, not from the "
            f"{new.effective_batch_size} samples of an optimizer step; accumulation is not one large batch for it."
        ]
    if old.batch_size != new.batch_size:
        return [f"BatchNorm: its statistics come from {new.batch_size} samples, no longer from {old.batch_size}."]
    return []


def _token_means(config: TunedConfig) -> list[str]:
    loss, steps = config.facts.loss, config.settings.gradient_accumulation_steps
    named = loss.removeprefix("loss_fn ").partition(";")[0]
    # Elsewhere nothing tells what a mean is over; torch's other loss modules take theirs over all elements.
    if steps == 1 or config.facts.reduction != "mean" or is_exact(named) or named.startswith("torch.nn.modules."):
        return []
    return [
        "Accumulation: each micro-batch's loss counts by its rows, unless training_step returns (loss, weight). Where "
        "the loss is a mean over tokens or over the targets not ignored, as models of language compute it, the "
        "gradient of the large batch is only approximated by rows; returning their number as the weight makes it exact."
    ]


def _data_order(config: TunedConfig) -> list[str]:
    lines = []
    samples, batch = config.facts.samples, config.settings.batch_size
    left_out = samples % batch if samples and batch else 0
    if _drops_last(config) and left_out:
        others = ", others each time as the order is shuffled" if config.saved.dataloader.get("shuffle") else ""
        lines.append(f"drop_last: {left_out} of {samples} samples are left out of each epoch{others}.")
    if config.settings.length_grouped and not config.baseline.length_grouped:
        lines.append(
            "Order of samples: each batch holds samples of similar length, batches following each other at random; "
            "every sample still comes once per pass of the sampler, but beside others than before."
        )
    if config.settings.num_workers and not config.baseline.num_workers:
        lines.append(
            f"Loading: samples are made in {config.settings.num_workers} worker processes, in each of which torch "
            "seeds its own, numpy's and python's global random generators differently: random augmentation draws "
            "other numbers than before."
        )
    return lines


def _process_wide(config: TunedConfig) -> list[str]:
    new, before = config.settings, config.facts.caller
    wanted = {
        "num_threads": (new.num_threads, f"torch.set_num_threads({new.num_threads})"),
        "cudnn_benchmark": (new.cudnn_benchmark, f"torch.backends.cudnn.benchmark = {new.cudnn_benchmark}"),
        "float32_matmul_precision": (
            "high" if new.precision == "tf32" else None,
            'torch.set_float32_matmul_precision("high")',
        ),
    }
    calls = [call for name, (value, call) in wanted.items() if value not in (None, before.get(name, value))]
    if not calls:
        return []
    said = f"Process-wide: tuned.prepare() sets {', '.join(calls)}"
    return [f"{said}; `with tuned.switches():` sets them for a block only."]


def _drops_last(config: TunedConfig) -> bool:
    return bool(config.saved.dataloader.get("drop_last"))
