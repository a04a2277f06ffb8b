"""An earlier answer, as far as it may be tried here and now."""

from __future__ import annotations

from typing import Any

from autotune.settings import Settings
from autotune.space.candidates import Candidates

__all__ = ["allowed_part"]

_OF_BATCH = ("batch_size", "gradient_accumulation_steps")
_OF_CORES = ("num_workers", "num_threads")
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")


def allowed_part(settings: Settings, candidates: Candidates, *, cores: int) -> Settings:
    """``settings`` without what may not be tried, which stays as in the baseline.

    Args:
        settings: An answer of another run, perhaps on another machine or under other limits.
        candidates: What may be tried.
        cores: Usable cores here, which workers and threads are cut down to.

    Returns:
        Settings that may be tried; the baseline where nothing of them is left.
    """
    baseline = candidates.baseline
    kept = {
        name: value for name, (_, value) in baseline.differences(settings).items() if _keeps(name, value, candidates)
    }
    part = _with_batch(baseline.replace(**kept), settings, candidates)
    threads = None if settings.num_threads is None else min(settings.num_threads, cores)
    part = candidates.shared(part, min(settings.num_workers, max(cores, baseline.num_workers)), threads)
    if part.num_workers and settings.prefetch_factor:
        part = part.replace(prefetch_factor=candidates.space.nearest("prefetch_factor", settings.prefetch_factor))
    return baseline if candidates.refusal(part) else part


def _keeps(name: str, value: Any, candidates: Candidates) -> bool:
    if name in (*_OF_BATCH, *_OF_CORES, *_OF_WORKERS) or name in candidates.dropped:
        return False
    known = candidates.values.get(name)
    possible = known is None or value in known
    return possible and candidates.space.allows(name, value) and (name, value) not in candidates.forbidden


def _with_batch(part: Settings, settings: Settings, candidates: Candidates) -> Settings:
    """``part`` with the batch of ``settings``, at most as large as it may be; unchanged where that is not possible."""
    batch, baseline = settings.batch_size, candidates.baseline
    if batch is None or baseline.batch_size is None or "batch_size" in candidates.dropped:
        return part
    steps = settings.gradient_accumulation_steps
    if not candidates.locked:
        batch = min(batch, candidates.max_batch_size, candidates.max_effective_batch_size // steps)
    changed = part.replace(
        batch_size=candidates.space.nearest("batch_size", max(1, batch)), gradient_accumulation_steps=steps
    )
    return part if candidates.refusal(changed) else changed
