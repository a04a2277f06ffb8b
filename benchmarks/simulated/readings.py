"""What a simulated trial reads beside its rate: peaks of memory, and what an epoch's turn costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.measurement import Chunk
from autotune.settings import Settings
from benchmarks.simulated.model import epoch_turn_s, memory_gb
from benchmarks.simulated.noise import Noise
from benchmarks.simulated.task import SimulatedTask

__all__ = ["peaks", "split", "turn_s"]

_RIPPLE = 0.03  # an allocator reserves up to this much more than is used


def turn_s(task: SimulatedTask, noise: Noise, settings: Settings, chunks: Sequence[Chunk]) -> float:
    """What a trial takes an epoch's turn for: as seen where a window crossed one, else the start's latency."""
    if sum(chunk.rows for chunk in chunks) >= task.samples:
        return float(epoch_turn_s(task, settings)) * noise.about(0.2)
    if not settings.num_workers:
        return 0.0
    first_batch_s = (settings.batch_size or 1) * task.sample_s
    starts_s = settings.num_workers * task.worker_start_s
    return first_batch_s if settings.persistent_workers else starts_s + first_batch_s


def peaks(task: SimulatedTask, settings: Settings) -> dict[str, Any]:
    """Peak memory in bytes, under the name that ``Measured`` has for it."""
    used = float(memory_gb(task, settings))
    rippled = used * (1 + _RIPPLE * _fraction(settings.batch_size or 1, task.index))
    peak_bytes = int(min(rippled, task.machine.memory_gb) * 1e9)
    return {"peak_accelerator_bytes" if task.machine.has_gpu else "peak_ram_bytes": peak_bytes}


def split(count: int, most: int) -> list[int]:
    """``count`` in at most ``most`` nearly equal parts."""
    parts = min(count, most)
    return [count // parts + (place < count % parts) for place in range(parts)]


def _fraction(one: int, other: int) -> float:
    """A fixed number between 0 and 1."""
    return (one * 2654435761 + other * 40503) % 2**20 / 2**20
