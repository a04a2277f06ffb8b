"""The bench of one child process: answers probes with outcomes, whatever the user's code does."""

from __future__ import annotations

import dataclasses
import math
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from autotune.build.loader import build_loader
from autotune.build.switches import switches
from autotune.build.train_step import TrainStep
from autotune.errors import DoesNotFitError, TaskError
from autotune.hardware import Hardware, Limits, PeakMemory
from autotune.measurement import COMPARED_ROWS, Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.oom import memory_failure, size_limit
from autotune.settings import Settings
from autotune.task import Facts, Task, resolve_loss
from autotune.task.batches import to_device
from autotune.task.names import qualified_name
from autotune.task.reduction import without_dropout
from autotune.task.samples import described_rows, first_batch
from autotune.trial.compiled import recompile_limit_hit, strict_recompiles
from autotune.trial.compute import Batches, Repeated, Turns, run_compute
from autotune.trial.device_memory import broken_context
from autotune.trial.gradient_noise import run_noise_scale
from autotune.trial.joint import NotFinite, run_joint
from autotune.trial.live import LiveBuilder, free_memory
from autotune.trial.loading import run_loading
from autotune.trial.lr_range import run_lr_range
from autotune.trial.models import ModelPool
from autotune.trial.numerics import (
    DRIFT_STEPS,
    NumericsResult,
    finite_parameters,
    follow,
    measured_numerics,
    reference_of,
    steady_dropout,
)
from autotune.trial.residents import Residents
from autotune.trial.stream import BatchStream
from autotune.trial.worst_case import WorstCase

__all__ = ["Bench"]

_COMPARED_BATCHES = 4
_COSTS = "sample-costs"

Phase = Literal["build", "loader", "step", "compile", "numerics"]


class Bench:
    """Everything measured happens on one of these.

    Args:
        task: The task, owned by this process.
        hardware: As detected by the parent.
        limits: What the process tree may use.
        fresh: Makes another, independent copy of the task; None: there is only this one.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        task: Task,
        hardware: Hardware,
        limits: Limits,
        *,
        fresh: Callable[[], Task] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._task, self._hardware, self._limits, self._clock = task, hardware, limits, clock
        self._device = torch.device(task.device or hardware.device)
        self._models, self._fresh = ModelPool(task, fresh), fresh
        self._data = task.data.resolve()
        self._facts: Facts | None = None
        self._builder: LiveBuilder | None = None
        self._residents: Residents | None = None
        self._batches: dict[int | None, Any] = {}
        self._memory = PeakMemory()
        self._worst = WorstCase(self._data, clock)
        self._steadied: Callable[[nn.Module], AbstractContextManager[None]] = steady_dropout
        self._phase: Phase = "build"
        self.poisoned = False
        """The process must not be used again (CPU out of memory, broken accelerator context)."""

    def describe(self) -> Facts:
        """Runs one small batch and says what this task is; a smaller one where that does not fit in memory.

        Raises:
            TaskError: The task cannot be trained as handed over.
            DoesNotFitError: Not even the smallest batch fits.
        """
        rows = described_rows(self._data, self._task.base_batch_size)
        while self._facts is None:
            try:
                self._facts = self._described(rows)
            except TaskError as error:
                if memory_failure(error) is None:
                    raise
                if rows in (None, 1):
                    remedy = "Use a smaller model or smaller samples, or a machine with more memory."
                    raise DoesNotFitError(
                        f"Not even the smallest batch fits in memory: {error.cause}", remedy
                    ) from error
            if self._facts is None and rows is not None:
                rows //= 2
                free_memory(self._device)
        return self._facts

    def keep_notes_in(self, folder: Path) -> None:
        """Leaves what is worth knowing to the next process of this run in ``folder``, and takes what is there."""
        self._worst.keep_in(folder / _COSTS)

    def run(self, probe: Probe) -> Outcome:
        """Answers ``probe``; an exception of the user's code becomes an outcome."""
        self.describe()
        self._phase = "build"
        try:
            with switches(probe.settings), strict_recompiles(probe.settings):
                return self._answer(probe)
        except NotFinite as error:
            return self._rejected(probe, f"{error}.".capitalize(), "numerics", None)
        except Exception as error:
            return self._failed(probe, error)

    def close(self) -> None:
        """Ends all workers and gives back what is held."""
        if self._residents is not None:
            self._residents.clear()
        self._models.clear()
        self._batches.clear()
        free_memory(self._device)

    def _answer(self, probe: Probe) -> Measured:
        match probe.kind:
            case "joint":
                return self._joint(probe)
            case "lap":
                return self._lap(probe)
            case "compute":
                return self._compute(probe) if probe.steps is None else self._compute_with_peak(probe)
            case "loader":
                return self._loading(probe)
            case "numerics":
                return self._numerics(probe)
            case "lr_range" | "noise_scale":
                self._parts[1].clear()
                self._phase = "step"
                run = run_lr_range if probe.kind == "lr_range" else run_noise_scale
                return run(self._parts[0], probe, clock=self._clock)

    def _joint(self, probe: Probe) -> Measured:
        self._parts[1].clear()
        with self._parts[0].lent(probe.settings, probe.seed) as live:
            self._phase = "compile" if probe.settings.compile_mode else "step"
            return run_joint(live, probe, epoch_rows=self._epoch_rows, clock=self._clock)

    def _lap(self, probe: Probe) -> Measured:
        self._phase = "step"
        return self._parts[1].lap(probe, epoch_rows=self._epoch_rows, clock=self._clock)

    def _loading(self, probe: Probe) -> Measured:
        self._phase = "loader"
        builder, residents = self._parts
        residents.clear()
        loader = builder.loader(probe.settings, probe.seed)
        stream = BatchStream(loader, on_epoch_end=lambda: None, clock=self._clock)
        try:
            return run_loading(stream, probe, epoch_rows=self._epoch_rows, clock=self._clock)
        finally:
            builder.end_loader(loader, stream, probe.settings)

    def _compute(self, probe: Probe) -> Measured:
        self._parts[1].clear()
        return self._steps_on(Repeated(self._cached_batch(probe.settings)), probe)

    def _steps_on(self, batches: Batches, probe: Probe) -> Measured:
        model, step = self._parts[0].trainer(probe.settings)
        self._phase = "compile" if probe.settings.compile_mode else "step"
        try:
            measured = run_compute(step, batches, probe, clock=self._clock)
        except BaseException:
            self._models.failed(model, probe.settings)
            raise
        self._models.give_back(model, probe.settings)
        return measured

    def _compute_with_peak(self, probe: Probe) -> Measured:
        """Everything a training loop holds counts: model, optimizer state, and the batch while it is made."""
        self._parts[1].clear()
        self._batches.clear()
        self._phase = "loader"
        worst = self._worst.batches(probe)
        free_memory(self._device)
        with self._memory:
            if len(worst) > 1:
                measured = self._steps_on(Turns(worst), probe)
            else:
                measured = self._steps_on(Repeated(worst[0]() if worst else self._cached_batch(probe.settings)), probe)
        self._batches.clear()
        return dataclasses.replace(
            measured,
            peak_ram_bytes=self._memory.peak_bytes,
            ram_limit_bytes=self._memory.limit_bytes,
            data=self._worst.data_costs(probe.settings.batch_size),
            warnings=(*measured.warnings, *self._worst.warnings),
        )

    def _numerics(self, probe: Probe) -> Measured:
        began = self._clock()
        self._parts[1].clear()
        until = began + probe.window_s / 2
        reduced = probe.settings.precision in ("bf16-mixed", "fp16-mixed")
        if probe.settings.compile_mode is not None:  # in another size it would be compiled anew
            batches, followed = [self._cached_batch(probe.settings)], 0
        else:
            rows = None if self._data.batches_kept else min(probe.settings.batch_size or 1, COMPARED_ROWS)
            batches, followed = self._some_batches(rows, until=until), DRIFT_STEPS if reduced else 0
        reference = self._reference(reference_of(probe.settings), batches, followed, until)
        setting = self._losses(probe.settings, batches, len(reference.followed), math.inf)
        return measured_numerics(probe, setting, reference, began=began, clock=self._clock)

    def _reference(self, settings: Settings, batches: list[Any], steps: int, until: float) -> NumericsResult:
        try:
            return self._losses(settings, batches, steps, until)
        except Exception as error:
            if self._steadied is without_dropout or memory_failure(error) is not None:
                raise
        # Detectors, among others, have no loss in eval mode.
        self._steadied = without_dropout
        return self._losses(settings, batches, steps, until)

    def _losses(self, settings: Settings, batches: list[Any], steps: int, until: float) -> NumericsResult:
        self._phase = "numerics"
        with switches(settings):
            with self._steady(settings) as (model, step):
                first, finite = float(step(batches[0])), finite_parameters(model)
            followed: tuple[float, ...] = ()
            if steps:
                with self._steady(settings) as (_, step):
                    followed = follow(step, batches, steps=steps, until=until, clock=self._clock)
        return NumericsResult(first, finite, followed)

    @contextmanager
    def _steady(self, settings: Settings) -> Iterator[tuple[nn.Module, TrainStep]]:
        torch.manual_seed(0)
        model, step = self._parts[0].trainer(settings.replace(gradient_accumulation_steps=1))
        try:
            with self._steadied(model):
                yield model, step
        except BaseException:
            self._models.failed(model, settings)
            raise
        self._models.give_back(model, settings)

    def _failed(self, probe: Probe, error: Exception) -> Outcome:
        where, too_large = memory_failure(error), size_limit(error)
        text = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}"
        traceback.clear_frames(error.__traceback__)  # else the frames keep the failed trial's tensors alive
        self.close()
        accelerated = self._device.type != "cpu"
        if where is not None and self._phase == "compile" and where != "accelerator":
            return self._rejected(probe, f"compiling ran out of memory ({message}).", "compile", text)
        if where is not None:
            self.poisoned = not accelerated
            return OutOfMemory(kind=probe.kind, settings=probe.settings, where=where, message=message)
        self.poisoned = accelerated and broken_context(error)
        endless = recompile_limit_hit(error)
        if endless is not None:
            return self._rejected(probe, f"{endless}.", "compile", text, qualified_name(type(error)))
        rejected = self._rejected(probe, message, self._phase, text, qualified_name(type(error)))
        return dataclasses.replace(rejected, size_limit=too_large)

    def _rejected(
        self, probe: Probe, reason: str, phase: Phase, text: str | None, error_type: str | None = None
    ) -> Rejected:
        return Rejected(
            kind=probe.kind,
            settings=probe.settings,
            phase=phase,
            reason=reason,
            error_type=error_type,
            traceback=text,
        )

    @property
    def _parts(self) -> tuple[LiveBuilder, Residents]:
        if self._builder is None or self._residents is None:
            raise TaskError("The bench was not described yet.", "Call describe() first.")
        return self._builder, self._residents

    @property
    def _epoch_rows(self) -> int | None:
        return self._data.samples

    def _described(self, rows: int | None) -> Facts:
        batch = first_batch(self._data, rows=rows)
        model = self._models.model.to(self._device)
        placed = to_device(batch, self._device, non_blocking=False)
        task, fresh = self._task, self._fresh
        loss = resolve_loss(loss_fn=task.loss_fn, training_step=task.training_step, model=model, batch=placed)
        facts = Facts.of(task, model, self._data, batch, loss, self._device, rows=rows)
        self._builder = LiveBuilder(
            task,
            self._data,
            facts,
            loss,
            self._models,
            self._device,
            self._clock,
            self._worst.lengths,
            (lambda: fresh().data.resolve()) if fresh else None,
        )
        self._residents = Residents(self._builder, self._limits, single=self._models.only_one)
        return facts

    def _some_batches(self, rows: int | None, *, count: int = _COMPARED_BATCHES, until: float = math.inf) -> list[Any]:
        """Up to ``count`` batches; one at least, and no more once ``until`` has passed."""
        self._phase = "loader"
        batches: list[Any] = []
        for batch in build_loader(self._data, Settings(batch_size=rows), has_batch_norm=False, seed=0):
            batches.append(batch)
            if len(batches) == count or self._clock() > until:
                break
        if not batches:
            raise TaskError("The data yields no batch.", "Check that the dataset has samples.")
        return batches

    def _cached_batch(self, settings: Settings) -> Any:
        key = settings.batch_size
        if key not in self._batches:
            self._batches = {key: self._some_batches(key, count=1)[0]}  # one at a time: batches can be large
        return self._batches[key]
