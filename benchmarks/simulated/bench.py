"""Answers probes as the product's bench does, on a simulated clock.

What takes time is what takes time there: a new process where the last one died, the model, the workers, the first
batch, compiling (cheap where the disk cache has it), cudnn's trials, a batch of each worker or all of the stock, and
windows of whole worker rounds. Cuts come after half a second or two rounds (on a CPU also after the second
step of the warm-up), a deadline kills the process, and so does running out of memory on a CPU.

Left out: another process is never noticed (``others_cores`` is None, so that no window is redone), numbers never go
wrong (the numerics probe costs its time and always agrees), and batches that lay ready flatter no window.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from autotune.measurement import COMPARED_ROWS, Chunk, Measured, Outcome, OutOfMemory, Probe, TimedOut
from autotune.settings import Settings
from autotune.trial.window import LONG_STEP_S
from benchmarks.simulated.caches import Caches
from benchmarks.simulated.clock import Clock, Overdue
from benchmarks.simulated.model import Step, compute_step_s, joint_step, loader_batch_s, memory_gb
from benchmarks.simulated.noise import CPU_NOISE, GPU_NOISE, Noise
from benchmarks.simulated.readings import peaks, split, turn_s
from benchmarks.simulated.task import SimulatedTask

__all__ = ["SimulatedBench"]

_MOST_CHUNKS = 12  # raw samples kept of a window; the product keeps all
_CUT_AFTER_S, _TELLING_STEP_S, _ONE_STEP_SHARE, _WAIT_SHARE = 0.5, 0.1, 0.44, 0.2  # as the product has them
_MOST_RESIDENT = 3
_STUDY_CAP_S = 60.0  # for the first batch and six steps, compilation aside
_CLEANING_UP_S = 1.0  # after running out of memory
_COMPILED_UNTIL_OUT_OF_MEMORY = 0.5  # of the time that compiling takes
_COMPARED_BATCHES, _NUMERICS_STEPS = 4, 30


class SimulatedBench:
    """One run's machine.

    Args:
        task: What is trained on it.
        seed: Of the noise.
        as_in_study: Trials as the study to be repeated had them: no time for the start of a process, three steps of
            warm-up whatever the workers have ready, windows that end after any step, no result of slow trials.

    Attributes:
        clock: Passes only in here.
        starts: Processes started.
        probes: Probes answered.
        out_of_memory: Those that ran out of memory.
    """

    def __init__(self, task: SimulatedTask, seed: int, *, as_in_study: bool = False) -> None:
        self._task = task
        self._as_in_study = as_in_study
        self._start_s = 0.0 if as_in_study else task.machine.process_start_s
        random = np.random.default_rng([seed, task.index, 77])
        self._noise = Noise(GPU_NOISE if task.machine.has_gpu else CPU_NOISE, random)
        self.clock = Clock()
        self.starts = self.probes = self.out_of_memory = 0
        self._alive = False
        self._caches = Caches(task)
        self._cached_rows: int | None = None
        self._slow_first = False
        self._resident: dict[Settings, bool] = {}

    def start(self) -> None:
        """Starts a process."""
        self.clock.spend(self._start_s, "process start")
        self.starts += 1
        self._alive = True
        self._caches.new_process()
        self._resident.clear()
        self._cached_rows = None

    def run(self, probe: Probe) -> Outcome:
        """What became of ``probe``; ``cost_s`` leaves out the start of a new process."""
        self.clock.racing = probe.kind == "lap"
        if not self._alive:
            self.start()
        self.probes += 1
        began = self.clock.now_s
        self.clock.deadline_s = began + probe.deadline_s
        try:
            outcome = self._answer(probe)
        except Overdue:
            self._alive = False
            outcome = TimedOut(kind=probe.kind, settings=probe.settings, deadline_s=probe.deadline_s)
        finally:
            self.clock.deadline_s = math.inf
            self.clock.racing = False
        if isinstance(outcome, OutOfMemory):
            self.out_of_memory += 1
            self._resident.clear()
            self._alive = self._task.machine.has_gpu
        return dataclasses.replace(outcome, cost_s=self.clock.now_s - began)

    def _answer(self, probe: Probe) -> Outcome:
        if probe.kind != "lap":
            self._resident.clear()
        match probe.kind:
            case "joint":
                return self._joint(probe)
            case "lap":
                return self._lap(probe)
            case "compute":
                return self._compute(probe)
            case "loader":
                return self._loading(probe)
            case "numerics":
                return self._numerics(probe)

    def _joint(self, probe: Probe) -> Outcome:
        start_s = self._start_trial(probe)
        if isinstance(start_s, OutOfMemory):
            return start_s
        step = joint_step(self._task, probe.settings)
        return self._warmed_window(probe, step, start_s, drains=True)

    def _lap(self, probe: Probe) -> Outcome:
        settings = probe.settings
        step = joint_step(self._task, settings)
        warm = self._resident.pop(settings, None)
        if warm is not None:
            outcome = self._warmed_window(probe, step, 0.0, drains=not warm)
            self._resident[settings] = True
            return dataclasses.replace(outcome, resident=True)
        if len(self._resident) >= _MOST_RESIDENT:
            self._resident.clear()
        start_s = self._start_trial(probe)
        if isinstance(start_s, OutOfMemory):
            return start_s
        outcome = self._warmed_window(probe, step, start_s, drains=True)
        self._resident = {other: not (other.num_workers and self._starved(other)) for other in self._resident}
        self._resident[settings] = True
        return dataclasses.replace(outcome, resident=True)

    def _start_trial(self, probe: Probe) -> float | OutOfMemory:
        """Model, workers, first batch, compilation; seconds until the first batch."""
        task, settings = self._task, probe.settings
        self.clock.spend(task.build_s, "building")
        began = self.clock.now_s
        self.clock.spend(settings.num_workers * task.worker_start_s, "worker starts")
        self.clock.spend((settings.batch_size or 1) * task.sample_s, "first batches")
        start_s = self.clock.now_s - began
        failed = self._first_step(probe)
        return failed or start_s

    def _first_step(self, probe: Probe) -> OutOfMemory | None:
        """Compiles, lets cudnn choose, and takes the memory."""
        settings = probe.settings
        if float(memory_gb(self._task, settings)) > self._task.machine.memory_gb:
            self.clock.spend(_COMPILED_UNTIL_OUT_OF_MEMORY * self._caches.cold_compile_s(settings), "compiling")
            self.clock.spend(_CLEANING_UP_S, "out of memory")
            where = "accelerator" if self._task.machine.has_gpu else "watchdog"
            return OutOfMemory(kind=probe.kind, settings=settings, where=where, message="simulated")  # type: ignore[arg-type]
        once_s = self._caches.compiled_s(settings), self._caches.cudnn_s(settings)
        self._slow_first = sum(once_s) > 0.2
        self.clock.spend(once_s[0], "compiling")
        self.clock.spend(once_s[1], "cudnn.benchmark")
        return None

    def _warmed_window(self, probe: Probe, step: Step, start_s: float, *, drains: bool) -> Measured:
        """Warm-up until the workers' stock is used up, one window."""
        settings, began = probe.settings, self.clock.now_s
        step_s, waited_s = float(step.seconds), float(step.waited_s)
        known = probe.kind == "lap" and start_s == 0.0 and not self._starved(settings)
        workers = 1 if known or self._as_in_study else max(1, settings.num_workers)
        group = math.lcm(workers, settings.gradient_accumulation_steps)
        done = 0
        if drains:
            cut_below = probe.cut_below_samples_per_s
            if cut_below and step_s >= _TELLING_STEP_S and not self._task.machine.has_gpu:
                rate = (settings.batch_size or 1) / max(step_s - waited_s, 1e-9)
                if rate < _ONE_STEP_SHARE * cut_below:
                    self.clock.spend(2 * step_s, "warm-up")
                    return self._one_step(probe, step, start_s, start_s + 2 * step_s)
            if self._as_in_study and start_s + 6 * step_s > _STUDY_CAP_S:
                self.clock.spend(max(0.0, _STUDY_CAP_S - start_s), "warm-up")
                return self._one_step(probe, step, start_s, _STUDY_CAP_S)
            done = self._warm_steps(settings, step_s - waited_s, starved=waited_s > _WAIT_SHARE * step_s)
        elif step_s < LONG_STEP_S:
            done = 1
        self.clock.spend(done * step_s, "warm-up")
        warmup_s = start_s + self.clock.now_s - began
        if probe.give_up_s is not None and warmup_s > probe.give_up_s:
            return self._one_step(probe, step, start_s, warmup_s)
        chunks, cut = self._window(probe, step_s, waited_s, group, seen_s=warmup_s)
        return Measured(
            kind=probe.kind,
            settings=settings,
            chunks=chunks,
            epoch_rows=self._task.samples,
            epoch_turn_s=turn_s(self._task, self._noise, settings, chunks),
            start_s=start_s,
            warmup_s=warmup_s,
            steps=done + len(chunks),
            largest_batch_rows=settings.batch_size or 0,
            cut=cut,
            **peaks(self._task, settings),
        )

    def _warm_steps(self, settings: Settings, own_s: float, *, starved: bool) -> int:
        """Steps until the first stock is gone: a starved step shows it once each worker's first batch is used."""
        if self._as_in_study:
            return 3
        eager = settings.compile_mode is None and settings.gradient_accumulation_steps == 1
        least = 1 if eager and own_s >= LONG_STEP_S else max(2, settings.gradient_accumulation_steps)
        if not settings.num_workers:
            return least
        ahead = settings.prefetch_factor or 1 if self._slow_first and not starved else 1
        return max(least, settings.num_workers * ahead)

    def _starved(self, settings: Settings) -> bool:
        step = joint_step(self._task, settings)
        return float(step.waited_s) > 0.05 * float(step.seconds)

    def _one_step(self, probe: Probe, step: Step, start_s: float, warmup_s: float) -> Measured:
        """Of a trial that is given up: the last step of its warm-up."""
        rows = probe.settings.batch_size or 1
        return Measured(
            kind=probe.kind,
            settings=probe.settings,
            chunks=(Chunk(rows, float(step.seconds), float(step.waited_s)),),
            start_s=start_s,
            warmup_s=warmup_s,
            steps=2,
            largest_batch_rows=rows,
            cut=True,
        )

    def _compute(self, probe: Probe) -> Outcome:
        task, settings = self._task, probe.settings
        rows = settings.batch_size or 1
        if rows != self._cached_rows:
            self.clock.spend(rows * task.sample_s, "first batches")
            self._cached_rows = rows
        self.clock.spend(task.build_s, "building")
        failed = self._first_step(probe)
        if failed is not None:
            return failed
        step_s, accumulation = float(compute_step_s(task, settings)), settings.gradient_accumulation_steps
        began = self.clock.now_s
        long_step = settings.compile_mode is None and step_s * accumulation >= LONG_STEP_S
        warm_steps = (1 if long_step else 2) if probe.steps is None else min(1, probe.steps - 1)
        self.clock.spend(warm_steps * accumulation * step_s, "warm-up")
        warmup_s = self.clock.now_s - began
        exactly = None if probe.steps is None else probe.steps - warm_steps
        chunks, cut = self._window(probe, step_s, 0.0, accumulation, exactly)
        return Measured(
            kind=probe.kind,
            settings=settings,
            chunks=chunks,
            warmup_s=warmup_s,
            largest_batch_rows=rows,
            cut=cut,
            **peaks(self._task, settings),
        )

    def _loading(self, probe: Probe) -> Outcome:
        task, settings = self._task, probe.settings
        began = self.clock.now_s
        self.clock.spend(settings.num_workers * task.worker_start_s, "worker starts")
        self.clock.spend((settings.batch_size or 1) * task.sample_s, "first batches")
        start_s = self.clock.now_s - began
        batch_s, group = float(loader_batch_s(task, settings)), max(1, settings.num_workers)
        self.clock.spend((1 if group == 1 else group) * batch_s, "warm-up")
        warmup_s = self.clock.now_s - began
        chunks, _ = self._window(dataclasses.replace(probe, cut_below_samples_per_s=None), batch_s, 0.0, group)
        return Measured(
            kind=probe.kind,
            settings=settings,
            chunks=chunks,
            epoch_rows=task.samples,
            epoch_turn_s=start_s if settings.num_workers else 0.0,
            start_s=start_s,
            warmup_s=warmup_s,
            largest_batch_rows=settings.batch_size or 0,
        )

    def _numerics(self, probe: Probe) -> Outcome:
        """Two models on the same few rows; reduced precision is followed for some steps."""
        task, settings = self._task, probe.settings
        began = self.clock.now_s
        compiled = settings.compile_mode is not None
        rows = (settings.batch_size or 1) if compiled else min(settings.batch_size or 1, COMPARED_ROWS)
        self._load_compared(rows, began + probe.window_s / 2, compiled=compiled)
        reference = Settings(batch_size=rows, num_threads=settings.num_threads)
        if compiled:
            reference = settings.replace(compile_mode=None)
        compared = settings.replace(batch_size=rows, gradient_accumulation_steps=1)
        self.clock.spend(self._caches.compiled_s(settings, rows), "compiling")
        reference_s, own_s = float(compute_step_s(task, reference)), float(compute_step_s(task, compared))
        left_s = probe.window_s / 2 - (self.clock.now_s - began)
        followed = settings.precision in ("bf16-mixed", "fp16-mixed") and not compiled
        steps = int(min(_NUMERICS_STEPS, max(0, math.ceil(left_s / reference_s)))) if followed else 0
        self.clock.spend(task.build_s + (1 + steps) * (reference_s + own_s), "numerics")
        return Measured(
            kind=probe.kind,
            settings=settings,
            chunks=(),
            steps=steps,
            first_loss=1.0,
            loss_error=0.0,
            loss_drift=0.0 if steps else None,
            drift_steps=steps,
            warmup_s=self.clock.now_s - began,
        )

    def _load_compared(self, rows: int, until_s: float, *, compiled: bool) -> None:
        """Up to four batches until a time; of compiled settings the one that is kept."""
        if compiled and rows == self._cached_rows:
            return
        for _ in range(1 if compiled else _COMPARED_BATCHES):
            self.clock.spend(rows * self._task.sample_s, "numerics")
            if self.clock.now_s > until_s:
                break
        self._cached_rows = rows if compiled else self._cached_rows

    def _window(
        self,
        probe: Probe,
        step_s: float,
        waited_s: float,
        group: int,
        exactly: int | None = None,
        seen_s: float = 0.0,
    ) -> tuple[tuple[Chunk, ...], bool]:
        """Whole groups of steps until the time is up; fewer where the rate is hopeless."""
        rows = probe.settings.batch_size or 1
        planned = exactly or max(1, math.ceil(probe.window_s / (group * step_s)))
        factor = self._noise.of_window(self.clock.now_s)
        chunks: list[Chunk] = []
        elapsed_s, cut_below = 0.0, probe.cut_below_samples_per_s
        for size in split(planned, _MOST_CHUNKS):
            steps = size * group
            seconds = steps * step_s / (factor * self._noise.of_chunk(steps * step_s, steps))
            self.clock.spend(seconds, "windows")
            chunks.append(Chunk(steps * rows, seconds, seconds * waited_s / step_s))
            elapsed_s += seconds
            if cut_below and elapsed_s >= _CUT_AFTER_S and sum(chunk.rows for chunk in chunks) < cut_below * elapsed_s:
                return tuple(chunks), True
            if probe.give_up_s is not None and seen_s + elapsed_s > probe.give_up_s:
                return tuple(chunks), elapsed_s < 0.5 * probe.window_s
        return tuple(chunks), False
