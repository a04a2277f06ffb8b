"""Loader-only probes: batches are taken and dropped, nothing is trained."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

from autotune.hardware import tree_memory_bytes
from autotune.measurement import Measured, Probe
from autotune.task.rows import RowCounter
from autotune.trial.stream import BatchStream, chunk_batches
from autotune.trial.timer import WindowTimer
from autotune.trial.window import Taken, epoch_turn_s, measure, take_steps, warm_up

__all__ = ["run_loading"]

_CPU = torch.device("cpu")
_NO_LOSS = torch.zeros(())


def run_loading(
    stream: BatchStream, probe: Probe, *, epoch_rows: int | None, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """The rate at which ``stream`` yields batches when nobody trains on them."""
    began = clock()
    settings = probe.settings
    rows = RowCounter(settings.batch_size)
    stock = settings.num_workers * (settings.prefetch_factor or 0)
    group = chunk_batches(settings.num_workers, 1)
    warm_up(stream, _drop, rows, stock=stock, least=1, clock=clock)
    take_steps(-stream.batches % group, stream, _drop, rows, Taken())
    warm = clock()
    window = measure(stream, _drop, rows, WindowTimer(_CPU, clock), batches_per_chunk=group, window_s=probe.window_s)
    start_s = stream.workers_start_s + stream.first_batch_s
    return Measured(
        kind=probe.kind,
        settings=settings,
        chunks=window.chunks,
        stock_rows=window.stock_rows,
        epoch_rows=epoch_rows,
        epoch_turn_s=epoch_turn_s(window, latency_s=start_s if settings.num_workers else 0.0),
        start_s=start_s,
        warmup_s=warm - began,
        largest_batch_rows=window.largest_batch_rows,
        peak_ram_bytes=tree_memory_bytes(os.getpid()),
    )


def _drop(_: Any) -> torch.Tensor:
    return _NO_LOSS
