"""What a training step, a sample's loading and a row's memory cost: one model and dataset on one machine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autotune.settings import Settings
from benchmarks.simulated.machine import Machine

__all__ = ["Factors", "SimulatedTask"]

Factors = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedTask:
    """One model and dataset on one machine; factors are relative to fp32, eager and torch's defaults."""

    index: int
    machine: Machine
    kind: str
    has_convolutions: bool
    samples: int
    """Per epoch."""
    row_s: float
    """Arithmetic for one row, at full use of the device."""
    knee: float
    """Rows below which the device is not full: a smaller batch takes as long."""
    padding: float
    """Share by which each doubling of the batch makes a row dearer."""
    launch_s: float
    """Host time of a step's forward and backward pass."""
    optimizer_s: float
    sample_s: float
    """Loading one sample in one process."""
    sample_bytes: float
    fixed_gb: float
    row_gb: float
    old_device: bool
    """No bf16 units."""
    precision_time: Factors
    precision_memory: Factors
    precision_host: Factors
    channels_last_time: Factors
    """By precision."""
    compile_time: Factors
    compile_host: Factors
    compile_memory: Factors
    compile_s: Factors
    """What compiling takes with a cold cache, by mode."""
    benchmark_time: float
    benchmark_s: float
    """What cudnn.benchmark's own trials take, once for each shape."""
    fused_time: float
    worker_start_s: float
    """For each worker."""
    build_s: float
    """Building model and optimizer on the device."""
    waits_for_device: bool
    """The training loop synchronises in each step, so that loading in-process hides behind nothing."""
    batch_transfer_s: float
    """Taking one batch out of a worker's queue."""
    sample_transfer_s: float
    contention: float
    """What each further worker costs the others."""
    storage_peak_workers: float
    """More workers than this slow each other down by ``storage_contention`` each."""
    storage_contention: float
    most_samples_per_s: float
    """What storage can give at most."""
    jitter: float
    """How unevenly samples load."""
    two_threads_speedup: float = 1.0
    oversubscription: float = 0.0
    """CPU: what more threads and workers than cores cost."""
    baseline: Settings = field(default_factory=Settings)
    """What the user has."""

    @property
    def bf16_pays(self) -> bool:
        """Whether the hardware multiplies bf16."""
        return not self.old_device if self.machine.has_gpu else bool(self.precision_time[2] < 1)
