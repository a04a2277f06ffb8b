"""The best setting there is, by trying all of them on paper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from autotune.settings import Settings
from benchmarks.simulated.model import (
    COMPILE_MODES,
    PRECISIONS,
    Knobs,
    host_and_device_s,
    joint_step_from,
    most_rows,
    rate_of_step,
    true_samples_per_s,
)
from benchmarks.simulated.task import SimulatedTask

__all__ = ["Optimum", "best_possible", "most_batch"]

_LARGEST = 4096
_PREFETCH = (1, 2, 4, 8)
_ON_OFF = (False, True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The fastest setting and its true rate."""

    settings: Settings
    samples_per_s: float


def most_batch(task: SimulatedTask, limit: str) -> int:
    """Largest batch: ``free`` 4,096 or the data set, ``cap`` the product's default, ``locked`` the user's."""
    own = task.baseline.batch_size or 1
    return {
        "free": max(own, min(_LARGEST, task.samples)),
        "cap": max(own, min(8 * own, task.samples // 20)),
        "locked": own,
    }[limit]


def best_possible(task: SimulatedTask, limit: str = "free") -> Optimum:
    """The optimum over every combination, those included that the product does not search.

    Batches are powers of two, the limit, and the largest that fits. A GPU's step grows with the host's time and with
    the device's, so of the settings of the step only those are combined with the loader's that no other beats in both.
    """
    most = most_batch(task, limit)
    sizes: list[int | None] = [most]
    if limit != "locked":
        sizes = [*(2**power for power in range(13) if 2**power < most), most, None]
    found = [_best_at(task, size, most) for size in sizes]
    return max(found, key=lambda one: one.samples_per_s)


def _best_at(task: SimulatedTask, size: int | None, most: int) -> Optimum:
    """The best with one batch size; None: for each setting the largest that fits."""
    steps = replace(_steps(task.machine.has_gpu), batch=size or 1)
    batch = np.clip(most_rows(task, steps), 1, most) if size is None else np.full(len(steps.precision), size)
    steps = replace(steps, batch=batch.astype(int))
    if size is not None and task.machine.has_gpu:
        steps = _unbeaten(task, steps)
    knobs = _crossed(steps, _loaders(task.machine.cores, task.machine.has_gpu))
    if task.machine.has_gpu:
        rates = rate_of_step(task, knobs, joint_step_from(task, knobs, *host_and_device_s(task, knobs)))
    else:
        rates = true_samples_per_s(task, knobs)
    best = int(np.argmax(rates))
    return Optimum(settings=_settings(knobs, best, task), samples_per_s=float(rates[best]))


@cache
def _steps(has_gpu: bool) -> Knobs:
    """All settings of the step."""
    names = ("precision", "channels_last", "compiled", "fused", "benchmark", "checkpointed", "threads")
    benchmarks, threads = (_ON_OFF, (1,)) if has_gpu else ((False,), (1, 2))
    return _all(names, (range(4), _ON_OFF, range(4), _ON_OFF, benchmarks, _ON_OFF, threads))


@cache
def _loaders(cores: int, has_gpu: bool) -> Knobs:
    """All settings of the loader; workers kept between epochs are never slower."""
    return _all(("workers", "prefetch", "pinned"), (range(cores + 1), _PREFETCH, _ON_OFF if has_gpu else (False,)))


def _all(names: Sequence[str], values: Sequence[Sequence[Any]]) -> Knobs:
    columns = np.array(list(itertools.product(*values)), dtype=int).T
    rest = dict.fromkeys(Knobs.__slots__, 0) | {"persistent": 1, "accumulation": 1, "batch": 1, "threads": 1}
    return Knobs(**{**rest, **dict(zip(names, columns, strict=True))})


_OF_LOADER = ("workers", "prefetch", "pinned")


def _crossed(steps: Knobs, loaders: Knobs) -> Knobs:
    count_steps, count_loaders = len(steps.precision), len(loaders.workers)
    fields: dict[str, Any] = {}
    for name in Knobs.__slots__:
        values = getattr(loaders if name in _OF_LOADER else steps, name)
        if np.ndim(values) == 0:
            fields[name] = values
        else:
            fields[name] = np.tile(values, count_steps) if name in _OF_LOADER else np.repeat(values, count_loaders)
    return Knobs(**fields)


def _unbeaten(task: SimulatedTask, steps: Knobs) -> Knobs:
    """Those that fit and that no other beats in both host and device time."""
    host, device = host_and_device_s(task, steps)
    host = np.where(steps.batch <= most_rows(task, steps, 1.0), host, np.inf)
    kept, least = [], np.inf
    for place in np.lexsort((device, host)):
        if device[place] < least and np.isfinite(host[place]):
            kept.append(place)
            least = device[place]
    if not kept:
        kept = [0]
    taken = {name: getattr(steps, name) for name in Knobs.__slots__}
    return Knobs(**{name: values[kept] if np.ndim(values) else values for name, values in taken.items()})


def _settings(knobs: Knobs, place: int, task: SimulatedTask) -> Settings:
    def at(name: str) -> int:
        values = getattr(knobs, name)
        return int(values[place]) if np.ndim(values) else int(values)

    settings = Settings(
        batch_size=at("batch"),
        pin_memory=bool(at("pinned")),
        precision=PRECISIONS[at("precision")],  # type: ignore[arg-type]
        channels_last=bool(at("channels_last")),
        compile_mode=COMPILE_MODES[at("compiled")],  # type: ignore[arg-type]
        optimizer_implementation="fused" if at("fused") else None,
        cudnn_benchmark=bool(at("benchmark")),
        activation_checkpointing=bool(at("checkpointed")),
        num_threads=None if task.machine.has_gpu else at("threads"),
    )
    return settings.replace(num_workers=at("workers"), prefetch_factor=at("prefetch")) if at("workers") else settings
