"""Compute-only probes: the train step on one cached real batch, no loader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from autotune.build.train_step import TrainStep
from autotune.hardware import tree_memory_bytes
from autotune.measurement import Measured, Probe
from autotune.task.batches import batch_rows
from autotune.trial.stream import BatchStream
from autotune.trial.timer import WindowTimer
from autotune.trial.window import Taken, measure, take_steps

__all__ = ["Repeated", "run_compute"]

_WARM_STEPS = 2


class Repeated:
    """A loader that yields the same batch for ever."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> Any:
        return self._batch


def run_compute(
    step: TrainStep, batch: Any, probe: Probe, *, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """The rate of ``step`` alone on ``batch``."""
    begin = clock()
    accumulation = probe.settings.gradient_accumulation_steps
    stream = BatchStream(Repeated(batch), on_epoch_end=step.flush, clock=clock)
    take_steps(_WARM_STEPS * accumulation, stream, step, batch_rows, Taken())
    warm = clock()
    window = measure(
        stream,
        step,
        batch_rows,
        WindowTimer(step.device, clock),
        batches_per_chunk=accumulation,
        window_s=probe.window_s,
        cut_below_samples_per_s=probe.cut_below_samples_per_s,
    )
    accelerated = step.device.type not in ("cpu", "mps")
    return Measured(
        kind=probe.kind,
        settings=probe.settings,
        chunks=window.chunks,
        warmup_s=warm - begin,
        steps=stream.batches // accumulation,
        largest_batch_rows=window.largest_batch_rows,
        cut=window.cut,
        peak_ram_bytes=tree_memory_bytes(os.getpid()),
        peak_accelerator_bytes=int(torch.accelerator.memory.max_memory_reserved(step.device)) if accelerated else None,
        first_loss=float(window.losses[0]),
        last_loss=float(window.losses[-1]),
    )
