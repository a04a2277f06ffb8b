"""Joint trials: loader and train step together, exactly as the user will run them."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from autotune.build.length_grouping import ROUND
from autotune.hardware import CpuMeter, ResidentPeak, io_bytes, tree_memory_bytes
from autotune.measurement import STARVED_SHARE, Measured, Probe
from autotune.trial.live import Live
from autotune.trial.stream import chunk_batches
from autotune.trial.timer import WindowTimer, synchronize
from autotune.trial.window import LONG_STEP_S, Taken, Window, epoch_turn_s, measure, take_steps, warm_up

__all__ = ["NotFinite", "run_joint"]

_OTHERS_CORES = 0.25  # other processes took this many of our cores: the window says little
_REDOS = 2
_COUNTS_READY = sys.platform != "darwin"  # what a window takes out of the stock can be told


class NotFinite(Exception):
    """The loss is NaN or infinite."""


@dataclass(frozen=True, slots=True)
class _Load:
    others_cores: float | None
    redone: int
    read_bytes: int | None
    fetched_bytes: int | None


def run_joint(
    live: Live, probe: Probe, *, epoch_rows: int | None, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """Warms ``live`` up unless it is warm, measures one window, and redoes it while others disturb it.

    Raises:
        NotFinite: The loss is NaN or infinite.
    """
    begin = clock()
    device = live.step.device
    _reset_peak(device)
    resident = ResidentPeak()
    resident.start()
    settings = live.settings
    group = _group(live)
    was_started = live.started
    if not live.warm:
        seen = _warm_up(live, probe, begin, clock)
        if seen.hopeless is not None:
            return _hopeless(live, probe, seen, clock() - begin)
        live.warm = True
    elif not live.long_steps:
        take_steps(1, live.stream, live.step, live.rows, Taken())  # it was held still: this wakes everything
    warm = clock()
    window, load = _quiet_window(live, probe, group, begin, clock)
    first, last = _finite_losses(window)
    _note_pace(live, window, group)
    return Measured(
        kind=probe.kind,
        settings=settings,
        chunks=window.chunks,
        stock_rows=window.stock_rows,
        epoch_rows=epoch_rows,
        epoch_turn_s=epoch_turn_s(window, latency_s=_latency_s(live)),
        start_s=0.0 if was_started else live.stream.workers_start_s + live.stream.first_batch_s,
        warmup_s=warm - begin,
        steps=live.stream.batches // settings.gradient_accumulation_steps,
        largest_batch_rows=window.largest_batch_rows,
        others_cores=load.others_cores,
        redone=load.redone,
        read_bytes=load.read_bytes,
        fetched_bytes=load.fetched_bytes,
        cut=window.cut,
        # Activations are gone by now: what is left of the workers, and how high this process rose meanwhile.
        peak_ram_bytes=tree_memory_bytes(os.getpid()) + resident.excess_bytes(),
        peak_accelerator_bytes=_peak(device),
        first_loss=first,
        last_loss=last,
    )


def _note_pace(live: Live, window: Window, group: int) -> None:
    """Keeps what the next lap needs to know."""
    seconds, waited_s = (math.fsum(getattr(one, name) for one in window.chunks) for name in ("seconds", "waited_s"))
    live.starved = waited_s >= STARVED_SHARE * seconds
    live.long_steps = min(chunk.seconds for chunk in window.chunks) >= group * LONG_STEP_S


def _group(live: Live) -> int:
    """Batches of a chunk: whole turns of the workers, except where the loader is known not to be waited for."""
    settings = live.settings
    mixture = ROUND if settings.length_grouped else 1
    workers = settings.num_workers if live.starved or not live.started else 1
    return chunk_batches(workers, settings.gradient_accumulation_steps, mixture)


def _warm_up(live: Live, probe: Probe, begin: float, clock: Callable[[], float]) -> Taken:
    settings, on_cpu = live.settings, live.step.device.type == "cpu"
    return warm_up(
        live.stream,
        live.step,
        live.rows,
        stock=settings.num_workers * (settings.prefetch_factor or 0),
        workers=None if live.started or not _COUNTS_READY else settings.num_workers,
        least=max(2, settings.gradient_accumulation_steps),  # the first optimizer step allocates its state
        clock=clock,
        # elsewhere a step's host time is only the time to queue it
        cut_below_samples_per_s=probe.cut_below_samples_per_s if on_cpu else None,
        # compiling and recording of graphs may go on in the second step
        one_if_long=settings.compile_mode is None and settings.gradient_accumulation_steps == 1,
        settle=partial(synchronize, live.step.device),
        until=begin + (math.inf if probe.give_up_s is None else probe.give_up_s),
    )


def _finite_losses(window: Window) -> tuple[float, float]:
    first, last = (float(loss) for loss in window.losses)
    if not (math.isfinite(first) and math.isfinite(last)):
        raise NotFinite(f"the loss is {first if not math.isfinite(first) else last}")
    return first, last


def _hopeless(live: Live, probe: Probe, seen: Taken, warmup_s: float) -> Measured:
    """What is known of a setting whose second step was far too slow."""
    return Measured(
        kind=probe.kind,
        settings=live.settings,
        chunks=(seen.hopeless,) if seen.hopeless else (),
        start_s=live.stream.workers_start_s + live.stream.first_batch_s,
        warmup_s=warmup_s,
        steps=live.stream.batches // live.settings.gradient_accumulation_steps,
        largest_batch_rows=seen.largest,
        cut=True,
    )


def _quiet_window(
    live: Live, probe: Probe, group: int, begin: float, clock: Callable[[], float]
) -> tuple[Window, _Load]:
    until = begin + (math.inf if probe.give_up_s is None else probe.give_up_s)
    deadline = min(until, clock() + probe.deadline_s / 3)  # leaves the parent's deadline out of reach
    for redone in range(_REDOS + 1):
        before = io_bytes(os.getpid())
        meter = CpuMeter()
        meter.start()
        window = measure(
            live.stream,
            live.step,
            live.rows,
            WindowTimer(live.step.device, clock),
            batches_per_chunk=group,
            window_s=probe.window_s,
            cut_below_samples_per_s=probe.cut_below_samples_per_s,
            give_up_s=until - clock(),
        )
        others = meter.stop()
        disturbed = others is not None and others > _OTHERS_CORES
        last = _REDOS if probe.kind == "joint" else 0  # the race repeats whole rounds itself
        if not disturbed or redone == last or clock() + probe.window_s > deadline:
            break
    read = _difference(before, io_bytes(os.getpid()))
    return window, _Load(others, redone, *read)


def _difference(before: tuple[int, int] | None, after: tuple[int, int] | None) -> tuple[int | None, int | None]:
    if before is None or after is None:
        return None, None
    # Non-persistent workers that ended meanwhile take their counts with them.
    return max(0, after[0] - before[0]), max(0, after[1] - before[1])


def _latency_s(live: Live) -> float:
    settings, stream = live.settings, live.stream
    if settings.num_workers == 0:
        return 0.0  # loading is part of every step
    if settings.persistent_workers:
        return stream.first_batch_s
    return stream.workers_start_s + stream.first_batch_s


def _reset_peak(device: torch.device) -> None:
    if device.type not in ("cpu", "mps"):
        torch.accelerator.memory.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> int | None:
    if device.type in ("cpu", "mps"):
        return None
    return int(torch.accelerator.memory.max_memory_reserved(device))
