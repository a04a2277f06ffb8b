"""Tasks drawn at random, with the setting that their user has.

Twenty-four tasks a set: some bound by loading, by arithmetic, by kernel launches or by memory, some mixed, some whose
samples are so cheap that workers hurt, one of padded text. Every kind's number is drawn whichever kind the task is, so
that a change in one kind leaves the other tasks as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.settings import Settings
from benchmarks.simulated.machine import MACHINES, Machine, MachineKind
from benchmarks.simulated.model import PRECISIONS, memory_gb
from benchmarks.simulated.task import Factors, SimulatedTask

__all__ = ["draw_tasks"]

_MIX: tuple[tuple[MachineKind, tuple[str, ...]], ...] = (
    ("A", ("load", "load", "comp", "comp", "launch", "launch", "mem", "mem", "mixed", "mixed")),
    ("C", ("load", "comp", "launch", "mem", "mixed", "whurt", "comp")),
    ("B", ("load", "comp", "launch", "mixed", "whurt", "text", "comp")),
)

Range = tuple[float, float]

_GPU_RANGES: Mapping[str, Mapping[str, Range]] = {
    "row_s": {
        "load": (3e-4, 1e-3),
        "comp": (3e-3, 2e-2),
        "launch": (1e-5, 1e-4),
        "mem": (0.03, 0.2),
        "mixed": (1e-3, 3e-3),
        "whurt": (2e-6, 1e-5),
    },
    "sample_s": {
        "load": (6e-3, 2.5e-2),
        "comp": (1e-3, 4e-3),
        "launch": (2e-5, 3e-4),
        "mem": (1e-3, 1.5e-2),
        "mixed": (3e-3, 1e-2),
        "whurt": (1e-6, 5e-6),
    },
    "launch_s": {
        "load": (5e-3, 0.02),
        "comp": (0.01, 0.03),
        "launch": (8e-3, 0.03),
        "mem": (0.02, 0.05),
        "mixed": (6e-3, 0.025),
        "whurt": (1e-3, 3e-3),
    },
    "knee": {
        "load": (4, 24),
        "comp": (2, 16),
        "launch": (32, 256),
        "mem": (2, 10),
        "mixed": (4, 24),
        "whurt": (128, 1024),
    },
    "row_gb": {
        "load": (0.03, 0.15),
        "comp": (0.05, 0.4),
        "launch": (0.001, 0.01),
        "mem": (0.5, 4.0),
        "mixed": (0.05, 0.2),
        "whurt": (1e-4, 1e-3),
    },
}
_CPU_RANGES: Mapping[str, Mapping[str, Range]] = {
    "row_s": {
        "load": (1e-3, 3e-3),
        "comp": (5e-3, 5e-2),
        "launch": (1e-5, 4e-5),
        "mixed": (2e-3, 5e-3),
        "whurt": (3e-6, 2e-5),
        "text": (2e-3, 8e-3),
    },
    "sample_s": {
        "load": (3e-3, 8e-3),
        "comp": (1e-4, 5e-4),
        "launch": (5e-6, 3e-5),
        "mixed": (2e-3, 5e-3),
        "whurt": (2e-6, 1e-5),
        "text": (2e-5, 2e-4),
    },
}
_SMALLER_CARD = {"row_s": 2.0, "row_gb": 0.6}  # machine C against A
_UNBOUND = 1e12  # samples per second


def draw_tasks(task_set: int = 0) -> list[SimulatedTask]:
    """The tasks of a set; set 1 is never tuned on."""
    draw = _Draw(np.random.default_rng(task_set))
    kinds = [(MACHINES[machine], kind) for machine, some in _MIX for kind in some]
    return [_with_baseline(_drawn(draw, index, *kind), draw) for index, kind in enumerate(kinds)]


class _Draw:
    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def chance(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def even(self, low: float, high: float) -> float:
        return float(self._random.uniform(low, high))

    def log(self, low: float, high: float) -> float:
        return float(np.exp(self._random.uniform(np.log(low), np.log(high))))

    def pick(self, *numbers: int) -> int:
        return int(self._random.choice(list(numbers)))

    def of_kind(self, ranges: Mapping[str, Range], kind: str) -> float:
        return {name: self.log(low, high) for name, (low, high) in ranges.items()}[kind]


def _drawn(draw: _Draw, index: int, machine: Machine, kind: str) -> SimulatedTask:
    has_convolutions = draw.chance(0.6) and kind not in ("launch", "whurt", "text")
    make = _on_gpu if machine.has_gpu else _on_cpu
    return make(draw, index, machine, kind, has_convolutions)


def _on_gpu(draw: _Draw, index: int, machine: Machine, kind: str, has_convolutions: bool) -> SimulatedTask:
    small = machine.kind == "C"
    drawn: dict[str, Any] = {
        name: draw.of_kind(ranges, kind) * (_SMALLER_CARD.get(name, 1.0) if small else 1.0)
        for name, ranges in _GPU_RANGES.items()
    }
    fixed = {"mem": draw.even(0.2, 0.5)}.get(kind, draw.even(0.02, 0.12))
    optimizer_s = draw.log(5e-3, 0.03) if kind == "mem" else draw.log(1e-3, 6e-3)
    old = small and draw.chance(0.35)
    precision_time = _gpu_precision_time(draw, old)
    precision_memory = np.array([1.0, 1.0, draw.even(0.55, 0.7), draw.even(0.55, 0.7)])
    precision_host = np.array([1.0, 1.0, draw.even(1.05, 1.3), draw.even(1.1, 1.4)])
    channels_last = _gpu_channels_last(draw, has_convolutions)
    compile_time, compile_host = _gpu_compiled(draw)
    compile_s = np.array([0.0, draw.even(20, 60), draw.even(25, 70), draw.even(60, 120)])
    compile_memory = np.array([1.0, draw.even(0.8, 1.0), draw.even(0.95, 1.15), draw.even(0.95, 1.15)])
    return SimulatedTask(
        **drawn,
        index=index,
        machine=machine,
        kind=kind,
        has_convolutions=has_convolutions,
        fixed_gb=machine.memory_gb * fixed,
        optimizer_s=optimizer_s,
        old_device=old,
        precision_time=precision_time,
        precision_memory=precision_memory,
        precision_host=precision_host,
        channels_last_time=channels_last,
        compile_time=compile_time,
        compile_host=compile_host,
        compile_s=compile_s,
        compile_memory=compile_memory,
        benchmark_time=draw.even(0.86, 1.0) if has_convolutions else 1.0,
        fused_time=draw.even(0.25, 0.6),
        worker_start_s=draw.even(0.1, 0.5),
        build_s=draw.even(0.2, 1.0),
        benchmark_s=draw.even(0.3, 2.0) if has_convolutions else 0.05,
        **_gpu_loader(draw, machine, kind, drawn["sample_s"]),
    )


def _gpu_loader(draw: _Draw, machine: Machine, kind: str, sample_s: float) -> dict[str, Any]:
    """What has to do with data."""
    light = kind in ("launch", "whurt")
    return {
        "waits_for_device": draw.chance(0.5),
        "batch_transfer_s": draw.log(1e-3, 3e-3) if kind == "whurt" else draw.log(1e-4, 4e-4),
        "sample_transfer_s": draw.log(3e-6, 1e-5) if kind == "whurt" else draw.log(1e-7, 3e-6),
        "sample_bytes": 2e3 if light else 6e5 * draw.log(0.2, 1.5),
        "contention": draw.even(0.005, 0.06),
        "jitter": draw.even(0.3, 2.0),
        "storage_peak_workers": machine.cores * (draw.even(0.4, 0.7) if draw.chance(0.3) else 2.0),
        "storage_contention": draw.even(0.05, 0.2),
        "most_samples_per_s": (machine.cores * draw.even(0.3, 0.6) / sample_s if draw.chance(0.25) else _UNBOUND),
        "padding": draw.even(0.03, 0.08) if draw.chance(0.2) else draw.even(0.0, 0.008),
        "samples": int(draw.log(5e3, 5e5)),
    }


def _gpu_precision_time(draw: _Draw, old: bool) -> Factors:
    tf32 = 1.0 if old else draw.even(0.45, 0.9)
    bf16 = (40.0 if draw.chance(0.5) else 3.0) if old else draw.even(0.3, 0.75)
    fp16 = draw.even(0.35, 0.75)
    return np.array([1.0, tf32, bf16, fp16 if old else bf16 * draw.even(0.97, 1.05)])


def _gpu_channels_last(draw: _Draw, has_convolutions: bool) -> Factors:
    if has_convolutions:
        factors = [draw.even(0.97, 1.3), draw.even(0.9, 1.1), draw.even(0.72, 0.95), draw.even(0.72, 0.95)]
    else:
        factors = [draw.even(1.0, 1.03)] * 4
    return np.array(factors) * (draw.even(1.15, 1.4) if draw.chance(0.25) else 1.0)


def _gpu_compiled(draw: _Draw) -> tuple[Factors, Factors]:
    """Device time and host time by mode; for some models compiling hurts."""
    hurts, factor = draw.chance(0.25), draw.even(0.7, 0.97)
    if hurts:
        device = [draw.even(1.05, 1.4)] * 3
        host = [draw.even(0.9, 1.4), draw.even(0.7, 1.3), draw.even(0.7, 1.3)]
    else:
        device = [factor, factor * draw.even(0.97, 1.02), factor * draw.even(0.9, 1.0)]
        host = [draw.even(0.5, 0.9), draw.even(0.12, 0.4), draw.even(0.12, 0.4)]
    return np.array([1.0, *device]), np.array([1.0, *host])


def _on_cpu(draw: _Draw, index: int, machine: Machine, kind: str, has_convolutions: bool) -> SimulatedTask:
    drawn: dict[str, Any] = {name: draw.of_kind(ranges, kind) for name, ranges in _CPU_RANGES.items()}
    step: dict[str, Any] = {
        "launch_s": draw.log(1e-3, 6e-3),
        "knee": draw.log(1, 8),
        "row_gb": draw.log(0.002, 0.02),
        "optimizer_s": draw.log(5e-4, 4e-3),
    }
    bf16 = 40.0 if draw.chance(0.75) else draw.even(0.6, 0.9)
    fp16 = 40.0 if draw.chance(0.7) else draw.even(0.9, 3.0)
    channels_last = draw.even(0.68, 0.95) if has_convolutions else 1.0
    channels_last = draw.even(1.1, 1.4) if draw.chance(0.3) else channels_last
    hurts, factor = draw.chance(0.3), draw.even(0.75, 1.0)
    compiled = [1.15, 1.15, 1.2] if hurts else [factor, factor, factor * draw.even(0.97, 1.03)]
    return SimulatedTask(
        **drawn,
        **step,
        index=index,
        machine=machine,
        kind=kind,
        has_convolutions=has_convolutions,
        fixed_gb=1.0,
        old_device=True,
        precision_time=np.array([1.0, 1.0, bf16, fp16]),
        precision_memory=np.array([1.0, 1.0, 0.6, 0.6]),
        precision_host=np.array([1.0, 1.0, 1.3, 1.3]),
        channels_last_time=np.full(4, channels_last),
        compile_time=np.array([1.0, *compiled]),
        compile_host=np.array([1.0, *(draw.even(0.5, 0.9) for _ in range(3))]),
        compile_s=np.array([0.0, draw.even(20, 60), draw.even(25, 60), draw.even(50, 120)]),
        compile_memory=np.ones(4),
        benchmark_time=1.0,
        benchmark_s=0.0,
        fused_time=draw.even(0.6, 1.0),
        worker_start_s=draw.even(0.1, 0.5),
        build_s=draw.even(0.05, 0.3),
        **_cpu_loader(draw, kind),
    )


def _cpu_loader(draw: _Draw, kind: str) -> dict[str, Any]:
    """What has to do with data, and with sharing the cores."""
    return {
        "waits_for_device": True,
        "batch_transfer_s": draw.log(5e-4, 2e-3),
        "sample_transfer_s": draw.log(1e-5, 6e-5) if kind == "whurt" else draw.log(1e-6, 1e-5),
        "sample_bytes": 1e4,
        "contention": 0.02,
        "storage_peak_workers": 9.0,
        "storage_contention": 0.0,
        "most_samples_per_s": _UNBOUND,
        "jitter": draw.even(0.3, 2.0),
        "padding": draw.even(0.05, 0.1) if kind == "text" else draw.even(-0.005, 0.03),
        "two_threads_speedup": draw.even(1.35, 1.9),
        "oversubscription": draw.even(0.1, 0.5),
        "samples": int(draw.log(5e3, 5e5)),
    }


def _with_baseline(task: SimulatedTask, draw: _Draw) -> SimulatedTask:
    """Torch's defaults, or what a user has who read a guide; on a smaller model where even that does not fit."""
    informed = draw.chance(0.45)
    for_memory, usual = draw.pick(2, 4), draw.pick(16, 32, 64)
    settings = Settings(batch_size={"mem": for_memory, "launch": 64, "whurt": 64}.get(task.kind, usual))
    if not task.machine.has_gpu:
        settings = settings.replace(num_threads=task.machine.cores)
    if informed and task.machine.has_gpu:
        settings = settings.replace(
            num_workers=draw.pick(2, 4),
            persistent_workers=False,
            pin_memory=True,
            precision=PRECISIONS[draw.pick(0, 3 if task.old_device else 1, 3)],
        )
    elif informed:
        settings = settings.replace(num_workers=draw.pick(1, 2), persistent_workers=False)
    while memory_gb(task, settings) > 0.9 * task.machine.memory_gb:
        settings = settings.replace(batch_size=max(1, (settings.batch_size or 1) // 2))
        task = replace(task, row_gb=task.row_gb * 0.9)
    return replace(task, baseline=settings)
