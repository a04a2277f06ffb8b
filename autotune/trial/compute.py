"""Compute-only probes: the train step on one cached real batch, no loader."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from autotune.build.train_step import TrainStep
from autotune.hardware import tree_memory_bytes
from autotune.measurement import Measured, Probe
from autotune.task.rows import RowCounter
from autotune.trial.device_memory import DeviceMemory
from autotune.trial.stream import BatchStream
from autotune.trial.timer import WindowTimer, synchronize
from autotune.trial.window import LONG_STEP_S, Taken, measure, take_steps

__all__ = ["Batches", "Repeated", "Turns", "run_compute"]


class Repeated:
    """A loader that yields the same batch for ever."""

    different = 1

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __iter__(self) -> Repeated:
        return self

    def __next__(self) -> Any:
        return self._batch


class Turns:
    """A loader that yields several batches in turn, for ever; each is made when it is its turn.

    Args:
        make: One callable per batch.
    """

    def __init__(self, make: Sequence[Callable[[], Any]]) -> None:
        self._make = itertools.cycle(make)
        self.different = len(make)

    def __iter__(self) -> Turns:
        return self

    def __next__(self) -> Any:
        return next(self._make)()


Batches = Repeated | Turns


def run_compute(
    step: TrainStep, batches: Batches, probe: Probe, *, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """The rate of ``step`` alone on ``batches``: over a window, or over exactly ``probe.steps`` optimizer steps.

    With a number of steps, the first of several is not timed: it allocates the optimizer's state; and there are at
    least as many as it takes to see each of the different batches.
    """
    begin = clock()
    memory = DeviceMemory(step.device)
    accumulation = probe.settings.gradient_accumulation_steps
    stream = BatchStream(batches, on_epoch_end=step.flush, clock=clock)
    rows = RowCounter(probe.settings.batch_size)
    steps = None if probe.steps is None else max(probe.steps, -(-batches.different // accumulation))
    warm_steps = 1 if steps is None else min(1, steps - 1)
    take_steps(warm_steps * accumulation, stream, step, rows, Taken())
    synchronize(step.device)
    long_step = probe.settings.compile_mode is None and clock() - begin >= LONG_STEP_S
    if steps is None and not long_step:  # the first step allocates and chooses, the second settles
        take_steps(accumulation, stream, step, rows, Taken())
    memory.first_step_done()
    warm = clock()
    window = measure(
        stream,
        step,
        rows,
        WindowTimer(step.device, clock),
        batches_per_chunk=accumulation,
        window_s=probe.window_s,
        cut_below_samples_per_s=probe.cut_below_samples_per_s,
        chunks=None if steps is None else steps - warm_steps,
    )
    return Measured(
        kind=probe.kind,
        settings=probe.settings,
        chunks=window.chunks,
        warmup_s=warm - begin,
        steps=stream.batches // accumulation,
        largest_batch_rows=window.largest_batch_rows,
        cut=window.cut,
        peak_ram_bytes=tree_memory_bytes(os.getpid()),
        peak_accelerator_bytes=memory.peak_bytes,
        accelerator_limit_bytes=memory.limit_bytes,
        allocation_retries=memory.retries,
        first_loss=float(window.losses[0]),
        last_loss=float(window.losses[-1]),
    )
