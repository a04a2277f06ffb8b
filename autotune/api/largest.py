"""``largest_batch()``: the largest batch that trains here, for people who ask for it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from autotune.api.options import Options
from autotune.api.ranks import refuse_ranks
from autotune.api.story import detected, opened
from autotune.batch_size import LargestBatch, SizeTried, find_largest
from autotune.errors import SettingsError
from autotune.hardware import Hardware, Limits, tree_memory_bytes
from autotune.measurement import DataCosts, Measured, Outcome, Probe
from autotune.report.narrator import Narrator, ProgressOption
from autotune.settings import Settings
from autotune.space import Candidates, Space
from autotune.task import Facts, Task

__all__ = ["largest_batch"]

_LOADING_SHARE = 0.5  # of RAM and of /dev/shm that batches under way may fill
# Where nothing else bounds it: far beyond the size at which a device is busy, and absurd steps are not tried.
_MOST_ON_CPU = 2**14
_MOST_ON_ACCELERATOR = 2**20
_IN_PROCESS_SHARE = 2  # one in so many free bytes is offered where no other process protects the caller
_GROWTH, _IN_PROCESS_GROWTH = 16, 4


def largest_batch(
    model: Any,
    dataset: Any = None,
    *,
    settings: Settings | None = None,
    loss_fn: Callable[..., Any] | None = None,
    training_step: Callable[..., Any] | None = None,
    optimizer: Any = None,
    base_batch_size: int | None = None,
    max_grad_norm: float | None = None,
    collate_fn: Callable[..., Any] | None = None,
    sampler: Any = None,
    shuffle: bool | None = None,
    device: Any = None,
    max_batch_size: int | None = None,
    memory_margin: float = 0.05,
    time_budget_s: float = 300.0,
    hardware: Hardware | None = None,
    isolate: bool = True,
    progress: ProgressOption = None,
    seed: int = 0,
) -> LargestBatch:
    """Finds the largest batch size that trains here, by running real steps until memory runs out.

    Each size is run for two optimizer steps in a process of its own that may run out of memory, crash or hang; the
    size returned for five steps in a fresh one. Where samples differ in size, the steps are on the largest of them;
    these are looked for in at most a twentieth of the time budget, and the result says how many samples were seen.
    Larger is not faster: ``autotune()`` grows the batch only while that pays.

    Args:
        model: ``nn.Module``, or a factory ``() -> nn.Module``.
        dataset: Dataset, iterable dataset, a factory of either, or your own DataLoader.
        settings: What to train with: precision, compilation, memory format, accumulation, …; its ``batch_size`` is
            where the search starts. None: as you have it.
        loss_fn: ``(output, target) -> scalar``. None: inferred, for measuring only.
        training_step: ``(model, batch) -> loss`` or ``(loss, weight)``, for everything else.
        optimizer: Optimizer, ``(params) -> Optimizer``, or None for AdamW with lr 1e-3.
        base_batch_size: Where the search starts, for a dataset without DataLoader and no ``settings``; None: 32.
        max_grad_norm: Clip gradients to this norm.
        collate_fn: For a dataset; as in DataLoader.
        sampler: For a dataset; as in DataLoader.
        shuffle: For a dataset; None: True for map-style data without a sampler.
        device: Where to train; None: the accelerator if there is one, else the CPU.
        max_batch_size: Largest size looked at; None: the number of samples, what half of the RAM holds as data, and
            16,384 on a CPU or 1,048,576 on an accelerator.
        memory_margin: Share of the memory to leave free, 0 to below 1: the result is at most
            ``floor((1 - margin) * largest)``, and its peak memory at most that share where it can be read.
        time_budget_s: Seconds after which only the best size so far is still verified and returned.
        hardware: A record to use in place of detecting it, such as ``dataclasses.replace(Hardware.detect(),
            ram_available_bytes=2**32)``: trials get 90 % of that, ``cores`` and ``shm_bytes`` bound the loader.
        isolate: False: in this process, without its protection, with half of the memory.
        progress: None: a live line if stderr is a terminal; False: silent; a callable gets each ``Progress``.
        seed: Seeds everything random.

    Returns:
        The size with the evidence: every size run, what became of it, its peak memory, and what bounds the result.

    Raises:
        SettingsError: An argument cannot be.
        TaskError: The task cannot be trained as handed over, at any size.
        DoesNotFitError: Not even a batch of one fits in memory.
        SandboxError: The process could not be started.
    """
    task = Task(
        model,
        dataset,
        loss_fn=loss_fn,
        training_step=training_step,
        optimizer=optimizer,
        base_batch_size=base_batch_size,
        max_grad_norm=max_grad_norm,
        collate_fn=collate_fn,
        sampler=sampler,
        shuffle=shuffle,
        device=device,
    )
    call = Options(
        max_batch_size=max_batch_size,
        memory_margin=memory_margin,
        time_budget_s=time_budget_s,
        hardware=hardware,
        isolate=isolate,
        progress=progress,
        seed=seed,
    )
    if settings is not None and not isinstance(settings, Settings):
        raise SettingsError(f"settings={settings!r} is no Settings.", "Use autotune.Settings(precision=...).")
    refuse_ranks()
    return _largest(task, call, settings)


def _largest(task: Task, call: Options, settings: Settings | None) -> LargestBatch:
    rules = call.batch_rules(task)
    began_s = time.monotonic()
    hardware = detected(task, call)
    limits = Limits.of(hardware)
    with Narrator(call.progress, call.time_budget_s) as narrator, opened(task, hardware, limits, call, narrator) as box:
        facts = box.describe()
        hardware = box.hardware
        if facts.batches_kept is not None:
            raise SettingsError(f"The batch size is not chosen here: {facts.batches_kept}.", "Pass the dataset itself.")
        wanted = settings or Candidates.of(facts, hardware, limits, rules, Space()).baseline
        accelerator = hardware.accelerator
        cap, reason = _cap(facts, wanted, limits, call.max_batch_size, on_cpu=accelerator is None)
        seen = _Seen(box.run)
        found = find_largest(
            seen.run,
            wanted.replace(num_workers=0, pin_memory=False),  # a step on one batch in memory needs no loader
            cap=cap,
            cap_reason=reason,
            start=wanted.batch_size or 32,
            memory_margin=call.memory_margin,
            ram_bytes=limits.ram_bytes if call.isolate else _in_process_bytes(limits),
            accelerator_bytes=(accelerator.free_bytes or accelerator.memory_bytes) if accelerator else None,
            most_growth=_GROWTH if call.isolate else _IN_PROCESS_GROWTH,
            time_budget_s=call.time_budget_s - (time.monotonic() - began_s),
            seed=call.seed,
            say=lambda tried: narrator.say("largest batch", sentence(tried)),
        )
        return dataclasses.replace(found, data=seen.data, warnings=(*box.warnings, *seen.warnings))


class _Seen:
    """Answers probes and keeps what they say of the data."""

    def __init__(self, run: Callable[[Probe], Outcome]) -> None:
        self._run = run
        self.data: DataCosts | None = None
        self.warnings: tuple[str, ...] = ()

    def run(self, probe: Probe) -> Outcome:
        outcome = self._run(probe)
        if isinstance(outcome, Measured):
            self.data = outcome.data
            self.warnings = tuple(dict.fromkeys((*self.warnings, *outcome.warnings)))
        return outcome


def _in_process_bytes(limits: Limits) -> int:
    """What this process may hold: what it has, and a share of what was free."""
    return tree_memory_bytes(os.getpid()) + limits.ram_bytes // _IN_PROCESS_SHARE


def _cap(
    facts: Facts, settings: Settings, limits: Limits, max_batch_size: int | None, *, on_cpu: bool
) -> tuple[int, str]:
    """The largest size worth a look, and why."""
    ahead = settings.num_workers * ((settings.prefetch_factor or 0) + 1)
    row_bytes = max(1, facts.sample_bytes)
    in_ram = int(_LOADING_SHARE * limits.ram_bytes) // (row_bytes * (ahead + 1))
    bounds = [(max(1, in_ram), f"batches of {in_ram:,} samples under way fill half of the RAM")]
    if facts.samples:
        bounds.append((facts.samples, f"the data has only {facts.samples:,} samples"))
    if ahead and limits.shm_bytes is not None:
        in_shm = max(1, int(_LOADING_SHARE * limits.shm_bytes) // (row_bytes * ahead))
        bounds.append((in_shm, f"batches of {in_shm:,} samples under way fill half of /dev/shm"))
    if max_batch_size is not None:
        bounds.append((max_batch_size, f"max_batch_size={max_batch_size}"))
    else:
        most = _MOST_ON_CPU if on_cpu else _MOST_ON_ACCELERATOR
        bounds.append((most, f"larger sizes than {most:,} are tried only where max_batch_size allows them"))
    return min(bounds)


def sentence(tried: SizeTried) -> str:
    """One line on a size that was run, for people."""
    if not tried.fits:
        return f"batch {tried.size:,}: {tried.fate}"
    if tried.peak_bytes is None or tried.limit_bytes is None:
        return f"batch {tried.size:,} fits"
    return f"batch {tried.size:,} fits, {tried.peak_bytes / 2**30:.2f} of {tried.limit_bytes / 2**30:.2f} GiB"
