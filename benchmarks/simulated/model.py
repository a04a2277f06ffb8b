"""What a setting costs under a simulated task: memory, seconds of a step, samples per second; numbers or arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.settings import Settings

if TYPE_CHECKING:
    from benchmarks.simulated.task import SimulatedTask

__all__ = [
    "COMPILE_MODES",
    "PRECISIONS",
    "Knobs",
    "Step",
    "compute_step_s",
    "epoch_turn_s",
    "host_and_device_s",
    "joint_step",
    "loader_batch_s",
    "memory_gb",
    "most_rows",
    "true_samples_per_s",
]

PRECISIONS = ("fp32", "tf32", "bf16-mixed", "fp16-mixed")
COMPILE_MODES = (None, "default", "reduce-overhead", "max-autotune-no-cudagraphs")

Number = Any  # a float, or an array of them

_CHECKPOINTED_MEMORY, _CHECKPOINTED_TIME = 0.35, 1.3
_CHANNELS_LAST_MEMORY = 1.03
_PINNED_BYTES_PER_S, _PAGEABLE_BYTES_PER_S = 20e9, 5e9
_GRAD_SCALER_S = 1.5e-3
_JITTER_LEFT = np.array([0.25, 0.25, 0.12, 0.12, 0.05, 0.05, 0.05, 0.05, 0.03])
"""Share of a loader's unevenness that so many batches ahead do not hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Settings as numbers; each field may be an array."""

    batch: Number
    workers: Number
    prefetch: Number
    pinned: Number
    persistent: Number
    precision: Number
    channels_last: Number
    compiled: Number
    fused: Number
    benchmark: Number
    checkpointed: Number
    threads: Number
    accumulation: Number = 1

    @classmethod
    def of(cls, settings: Settings) -> Knobs:
        """The numbers of ``settings``; whatever is not modelled counts as torch's default."""
        return cls(
            batch=settings.batch_size or 1,
            workers=settings.num_workers,
            prefetch=settings.prefetch_factor or 2,
            pinned=settings.pin_memory,
            persistent=settings.persistent_workers,
            precision=PRECISIONS.index(settings.precision),
            channels_last=settings.channels_last,
            compiled=COMPILE_MODES.index(settings.compile_mode),
            fused=settings.optimizer_implementation == "fused",
            benchmark=settings.cudnn_benchmark,
            checkpointed=settings.activation_checkpointing,
            threads=settings.num_threads or 1,
            accumulation=settings.gradient_accumulation_steps,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One micro-batch of training with its loader."""

    seconds: Number
    waited_s: Number
    """Part of it in which the step waits for data."""


def memory_gb(task: SimulatedTask, settings: Settings | Knobs) -> Number:
    """Peak of the device's memory (the process's, on a CPU)."""
    knobs = _knobs(settings)
    return task.fixed_gb + _row_gb(task, knobs) * knobs.batch


def most_rows(task: SimulatedTask, settings: Settings | Knobs, share: float = 0.97) -> Number:
    """Largest batch that fits into ``share`` of the memory."""
    knobs = _knobs(settings)
    return np.floor((task.machine.memory_gb * share - task.fixed_gb) / _row_gb(task, knobs))


def host_and_device_s(task: SimulatedTask, knobs: Knobs) -> tuple[Number, Number]:
    """Seconds that a step keeps the host and the device busy; on a CPU overhead, and work for one thread."""
    recomputed = np.where(knobs.checkpointed, _CHECKPOINTED_TIME, 1.0)
    update_s = task.optimizer_s * np.where(knobs.fused, task.fused_time, 1.0) / knobs.accumulation
    host = task.launch_s * task.compile_host[knobs.compiled] * task.precision_host[knobs.precision] * recomputed
    host = host + update_s
    factor = task.precision_time[knobs.precision] * task.compile_time[knobs.compiled] * recomputed
    factor = factor * np.where(knobs.channels_last, task.channels_last_time[knobs.precision], 1.0)
    factor = factor * np.where(knobs.benchmark, task.benchmark_time, 1.0)
    rows = np.asarray(knobs.batch, float)
    padded = 1 + task.padding * np.log2(np.maximum(rows, 1))
    device = task.row_s * factor * _smooth_max(rows, task.knee, 4) * padded
    if task.machine.has_gpu:
        host = host + np.where(np.asarray(knobs.precision) == 3, _GRAD_SCALER_S, 0.0)
        device = device + 0.5 * update_s
    return host, device


def compute_step_s(task: SimulatedTask, settings: Settings | Knobs) -> Number:
    """Seconds of a step on a batch that is there already."""
    knobs = _knobs(settings)
    host, device = host_and_device_s(task, knobs)
    return _smooth_max(host, device) if task.machine.has_gpu else host + device / _speedup(task, knobs)


def loader_batch_s(task: SimulatedTask, settings: Settings | Knobs) -> Number:
    """Seconds between batches when nobody trains."""
    knobs = _knobs(settings)
    rows = np.asarray(knobs.batch, float)
    return np.where(np.asarray(knobs.workers) > 0, rows / _loader_samples_per_s(task, knobs), rows * task.sample_s)


def joint_step(task: SimulatedTask, settings: Settings | Knobs) -> Step:
    """A step in its steady state, loader included."""
    knobs = _knobs(settings)
    return _gpu_step(task, knobs, *host_and_device_s(task, knobs)) if task.machine.has_gpu else _cpu_step(task, knobs)


def joint_step_from(task: SimulatedTask, knobs: Knobs, host: Number, device: Number) -> Number:
    """Seconds of a GPU's step whose two parts are known already."""
    return _gpu_step(task, knobs, host, device).seconds


def epoch_turn_s(task: SimulatedTask, settings: Settings | Knobs) -> Number:
    """What each new epoch costs beyond its steps."""
    knobs = _knobs(settings)
    batch_s = np.asarray(knobs.batch, float) * task.sample_s
    kept = 0.03 + 0.3 * batch_s
    anew = task.worker_start_s * np.asarray(knobs.workers) + batch_s + 0.1
    return np.where(np.asarray(knobs.workers) > 0, np.where(knobs.persistent, kept, anew), 0.01)


def true_samples_per_s(task: SimulatedTask, settings: Settings | Knobs) -> Number:
    """The rate over whole epochs; 0 for what does not fit."""
    knobs = _knobs(settings)
    seconds = joint_step(task, knobs).seconds
    return rate_of_step(task, knobs, seconds)


def rate_of_step(task: SimulatedTask, knobs: Knobs, step_s: Number) -> Number:
    """The rate over whole epochs of steps that take ``step_s``."""
    rows = np.asarray(knobs.batch, float)
    epoch_s = task.samples * step_s / rows + epoch_turn_s(task, knobs)
    fits = (memory_gb(task, knobs) <= task.machine.memory_gb) & (rows <= task.samples)
    return np.where(fits, task.samples / epoch_s, 0.0)


def _knobs(settings: Settings | Knobs) -> Knobs:
    return settings if isinstance(settings, Knobs) else Knobs.of(settings)


def _smooth_max(one: Number, other: Number, sharpness: float = 6.0) -> Number:
    """Two things at once take a little longer than the longer of them."""
    longer = np.maximum(one, other) + 1e-12
    return longer * ((one / longer) ** sharpness + (other / longer) ** sharpness) ** (1 / sharpness)


def _row_gb(task: SimulatedTask, knobs: Knobs) -> Number:
    kept = np.where(knobs.checkpointed, _CHECKPOINTED_MEMORY, 1.0)
    layout = np.where(knobs.channels_last, _CHANNELS_LAST_MEMORY, 1.0)
    return task.row_gb * task.precision_memory[knobs.precision] * kept * task.compile_memory[knobs.compiled] * layout


def _speedup(task: SimulatedTask, knobs: Knobs) -> Number:
    return np.where(np.asarray(knobs.threads) > 1, task.two_threads_speedup, 1.0)


def _loader_samples_per_s(task: SimulatedTask, knobs: Knobs) -> Number:
    workers = np.maximum(np.asarray(knobs.workers, float), 1)
    useful = workers / (1 + task.contention * (workers - 1))
    useful = useful / (1 + task.storage_contention * np.maximum(0, workers - task.storage_peak_workers))
    if task.machine.has_gpu:
        useful = useful / (1 + 0.15 * np.maximum(0, workers - (task.machine.cores - 1)))
    return np.minimum(useful / task.sample_s, task.most_samples_per_s)


def _unevenness(task: SimulatedTask, knobs: Knobs) -> Number:
    left = _JITTER_LEFT[np.minimum(knobs.prefetch, 8)]
    return np.minimum(task.jitter * left / np.sqrt(np.maximum(knobs.workers, 1)), 0.5)


def _gpu_step(task: SimulatedTask, knobs: Knobs, host: Number, device: Number) -> Step:
    rows, workers = np.asarray(knobs.batch, float), np.asarray(knobs.workers)
    copied_s = rows * task.sample_bytes / np.where(knobs.pinned, _PINNED_BYTES_PER_S, _PAGEABLE_BYTES_PER_S)
    host = host * np.where(workers >= task.machine.cores, 1.2, 1.0)
    fed_host = host + task.batch_transfer_s + task.sample_transfer_s * rows + np.where(knobs.pinned, 0.0, copied_s)
    fed = _smooth_max(fed_host, device + np.where(knobs.pinned, 0.2 * copied_s, 0.0))
    loading = rows / _loader_samples_per_s(task, knobs)
    with_workers = _smooth_max(loading, fed, 8) + _unevenness(task, knobs) * np.minimum(loading, fed)
    in_process = rows * task.sample_s + copied_s
    alone = _alone(task, host, device, in_process)
    seconds = np.where(workers > 0, with_workers, alone)
    waited = np.where(workers > 0, with_workers - fed, np.minimum(rows * task.sample_s, alone))
    return Step(seconds, np.maximum(waited, 0.0))


def _alone(task: SimulatedTask, host: Number, device: Number, loading: Number) -> Number:
    if task.waits_for_device:
        return _smooth_max(host, device) + loading
    busy = host + loading
    return _smooth_max(busy, device, 4) + 0.1 * np.minimum(busy, device)


def _cpu_step(task: SimulatedTask, knobs: Knobs) -> Step:
    rows, workers = np.asarray(knobs.batch, float), np.asarray(knobs.workers)
    threads = np.asarray(knobs.threads, float)
    host, work = host_and_device_s(task, knobs)
    step = host + work / _speedup(task, knobs)
    loading = rows * task.sample_s
    transfer = task.batch_transfer_s + task.sample_transfer_s * rows
    busy = host + work * np.where(threads > 1, 2 / task.two_threads_speedup, 1.0) + loading + transfer
    crowded = np.maximum(0, threads + workers - 2) * np.minimum(1, loading / np.maximum(step, 1e-9))
    slowed = 1 + task.oversubscription * crowded
    trained = _smooth_max(step + transfer, busy / 2, 8) * slowed
    together = _smooth_max(_smooth_max(step + transfer, loading / np.maximum(workers, 1), 8), busy / 2, 8) * slowed
    together = together + _unevenness(task, knobs) * np.minimum(loading, step)
    seconds = np.where(workers > 0, together, step + loading)
    waited = np.where(workers > 0, together - trained, loading)
    return Step(seconds, np.maximum(waited, 0.0))
