"""The moves of the plan, in order; each yields settings built on the best so far.

A stage is a generator: it looks at the plan's best after every attempt, so each move builds on what won.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from autotune.hardware import Hardware
from autotune.measurement import Measured
from autotune.planner.pace import Pace
from autotune.settings import Settings
from autotune.space import Candidates

__all__ = ["Search", "Stage", "stages_for"]


class Search(Protocol):
    """What a stage may look at."""

    candidates: Candidates
    hardware: Hardware
    pace: Pace

    @property
    def best(self) -> Measured:
        """The fastest setting so far."""
        ...


Stage = Callable[[Search], Iterator[Settings]]

_GPU_PREFETCH = 4


def stages_for(hardware: Hardware) -> tuple[Stage, ...]:
    """The stages for this kind of machine."""
    if hardware.accelerator is None:
        return (split_cores, grow_batch, flags, reduced_precision, resplit_cores, same_batch)
    return (all_at_once, grow_batch, workers, flags, reduced_precision, same_batch)


def split_cores(plan: Search) -> Iterator[Settings]:
    """Workers and intra-op threads share the cores, so they are one move: all cores load, one thread trains."""
    cores = plan.hardware.cores
    yield plan.best.settings.replace(num_workers=cores, num_threads=1)
    if cores > 2:
        half = cores // 2
        yield plan.best.settings.replace(num_workers=half, num_threads=cores - half)


def grow_batch(plan: Search) -> Iterator[Settings]:
    """A much larger batch; on by doubling while that pays, back to half of it where it does not."""
    before = plan.best
    grown = _batch_times(plan, plan.best.settings, plan.pace.batch_step)
    if grown is None:
        return
    yield grown
    if plan.best.settings != grown:
        smaller = _batch_times(plan, before.settings, 2)
        if smaller is not None:
            yield smaller
        return
    while True:
        before = plan.best
        doubled = _batch_times(plan, before.settings, 2)
        if doubled is None:
            return
        yield doubled
        gain = plan.best.samples_per_s / before.samples_per_s - 1
        if plan.best.settings != doubled or gain < plan.pace.batch_gain:
            return


def flags(plan: Search) -> Iterator[Settings]:
    """Memory format and optimizer implementation together, then the format alone."""
    implementations = plan.candidates.values.get("optimizer_implementation", ())
    changes = {"channels_last": True} if "channels_last" in plan.candidates.values else {}
    fused = {"optimizer_implementation": implementations[0]} if implementations else {}
    start = plan.best.settings
    yield start.replace(**changes, **fused)
    if changes and fused and not plan.best.settings.channels_last:
        yield start.replace(**changes)
        yield start.replace(**fused)


def reduced_precision(plan: Search) -> Iterator[Settings]:
    """Each precision this machine computes natively."""
    for precision in plan.candidates.values.get("precision", ()):
        yield plan.best.settings.replace(precision=precision)


def resplit_cores(plan: Search) -> Iterator[Settings]:
    """The best split moves with the batch: neighbours of the split in use."""
    best = plan.best.settings
    cores = plan.hardware.cores
    for num_workers, num_threads in ((1, cores), (cores, cores), (1, max(1, cores - 1)), (0, cores)):
        yield best.replace(num_workers=num_workers, num_threads=num_threads)


def all_at_once(plan: Search) -> Iterator[Settings]:
    """One guess with everything that usually helps on an accelerator; then without what changes training."""
    values = plan.candidates.values
    start = plan.best.settings
    loading = min(plan.hardware.cores - 1, 8) if "num_workers" not in plan.candidates.dropped else 0
    usual = {
        name: values[name][0]
        for name in ("precision", "channels_last", "optimizer_implementation", "pin_memory", "cudnn_benchmark")
        if values.get(name)
    }
    if loading > 0:
        usual |= {"num_workers": loading, "prefetch_factor": _GPU_PREFETCH, "persistent_workers": True}
    guess = start.replace(**usual)
    yield _batch_times(plan, guess, plan.pace.batch_step) or guess
    if plan.best.settings == start:
        yield guess
        yield guess.replace(precision=start.precision)


def workers(plan: Search) -> Iterator[Settings]:
    """More, fewer and no workers around the guess."""
    cores = plan.hardware.cores
    for count in (cores, max(1, cores // 2), 2, 0):
        best = plan.best.settings
        prefetch = {"prefetch_factor": _GPU_PREFETCH} if count else {}
        yield best.replace(num_workers=count, **prefetch)


def same_batch(plan: Search) -> Iterator[Settings]:
    """The best with the batch the caller had: the gain without any change in training."""
    baseline = plan.candidates.baseline
    if plan.best.settings.effective_batch_size != baseline.effective_batch_size:
        yield plan.best.settings.replace(
            batch_size=baseline.batch_size, gradient_accumulation_steps=baseline.gradient_accumulation_steps
        )


def _batch_times(plan: Search, settings: Settings, factor: int) -> Settings | None:
    """``settings`` with the micro-batch grown by ``factor``, or as far as allowed; None where it cannot grow."""
    batch, accumulation = settings.batch_size, settings.gradient_accumulation_steps
    if batch is None:
        return None
    most = min(plan.candidates.max_batch_size, plan.candidates.max_effective_batch_size // accumulation)
    if "batch_size" in plan.candidates.dropped or most <= batch:
        return _merged(plan, settings)
    return settings.replace(batch_size=min(batch * factor, most))


def _merged(plan: Search, settings: Settings) -> Settings | None:
    """With the effective batch locked, accumulation steps merged into a larger micro-batch are the way to grow."""
    batch, accumulation = settings.batch_size, settings.gradient_accumulation_steps
    if batch is None or accumulation == 1 or "batch_size" in plan.candidates.dropped:
        return None
    factor = next(size for size in range(2, accumulation + 1) if accumulation % size == 0)
    if batch * factor > plan.candidates.max_batch_size:
        return None
    return settings.replace(batch_size=batch * factor, gradient_accumulation_steps=accumulation // factor)
