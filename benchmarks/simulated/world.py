"""One task on one machine as strategies see it: what may be tried, what answers, and what only the score knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from autotune.hardware import Hardware, Limits
from autotune.measurement import Outcome, Probe
from autotune.settings import CompileMode, Precision, Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.space.knobs import dropped_knobs, values_to_try
from autotune.task import Facts
from benchmarks.simulated.bench import SimulatedBench
from benchmarks.simulated.clock import Clock
from benchmarks.simulated.machine import hardware_record
from benchmarks.simulated.model import memory_gb, true_samples_per_s
from benchmarks.simulated.optimum import Optimum, best_possible, most_batch
from benchmarks.simulated.task import SimulatedTask

__all__ = ["BatchLimit", "Bench", "World", "candidates_of", "simulated_facts", "simulated_world"]

BatchLimit = Literal["free", "cap", "locked"]
"""Of the effective batch: up to 4,096 (or the data set), the product's default of 8 times the user's, or the user's."""


class Bench(Protocol):
    """Answers probes on a clock of its own."""

    clock: Clock
    starts: int
    probes: int
    out_of_memory: int

    def start(self) -> None:
        """Starts a process."""
        ...

    def run(self, probe: Probe) -> Outcome:
        """What became of the probe."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One task on one machine."""

    name: str
    kind: str
    """Machine and kind of task, such as "A load"."""
    has_gpu: bool
    hardware: Hardware
    candidates: Candidates
    most_batch: int
    optimum: Optimum
    bench: Callable[[int], Bench]
    """A machine nobody used yet, with noise from a seed."""
    true_samples_per_s: Callable[[Settings], float]
    fits: Callable[[Settings], bool]

    @property
    def baseline(self) -> Settings:
        """What the user has."""
        return self.candidates.baseline


def simulated_world(task: SimulatedTask, limit: BatchLimit = "free", *, as_in_study: bool = False) -> World:
    """The world of a drawn task.

    Args:
        task: The task.
        limit: Of the effective batch, for strategies and optimum alike.
        as_in_study: See ``SimulatedBench``.
    """
    hardware = hardware_record(task.machine, bf16_pays=task.bf16_pays)
    most = most_batch(task, limit)
    rules = BatchRules(effective_batch_size="keep") if limit == "locked" else BatchRules(max_effective_batch_size=most)
    return World(
        name=f"{task.index} {task.machine.kind} {task.kind}",
        kind=f"{task.machine.kind} {task.kind}",
        has_gpu=task.machine.has_gpu,
        hardware=hardware,
        candidates=candidates_of(simulated_facts(task), hardware, rules, task.baseline),
        most_batch=most,
        optimum=best_possible(task, limit),
        bench=lambda seed: SimulatedBench(task, seed, as_in_study=as_in_study),
        true_samples_per_s=lambda settings: float(true_samples_per_s(task, settings)),
        fits=lambda settings: bool(memory_gb(task, settings) <= task.machine.memory_gb),
    )


def candidates_of(facts: Facts, hardware: Hardware, rules: BatchRules, baseline: Settings) -> Candidates:
    """What the product would try around ``baseline``.

    The product's own baseline always has fp32 (it leaves autocast to the user's step); here it may have another.
    """
    space = Space(precision=list(get_args(Precision)), compile_mode=[None, *get_args(CompileMode)])
    found = Candidates.of(facts, hardware, Limits.of(hardware), rules, space)
    values = values_to_try(facts, hardware, space, baseline)
    dropped = dropped_knobs(facts, hardware, space, baseline, values)
    values = {name: some for name, some in values.items() if name not in dropped}
    return dataclasses.replace(found, baseline=baseline, values=values, dropped=dropped)


def simulated_facts(task: SimulatedTask) -> Facts:
    """What the product would know of the task."""
    given = task.baseline
    return facts_of(
        given,
        samples=task.samples,
        sample_bytes=max(1, int(task.sample_bytes)),
        has_conv_4d=task.has_convolutions,
        name=f"{task.machine.kind} {task.kind} {task.index}",
    )


def facts_of(given: Settings, *, samples: int | None, sample_bytes: int, has_conv_4d: bool, name: str) -> Facts:
    """Facts of a plain map-style task whose DataLoader has the settings ``given``."""
    names = ("batch_size", "num_workers", "prefetch_factor", "persistent_workers", "pin_memory")
    loader = {name: getattr(given, name) for name in names}
    return Facts(
        samples=samples,
        iterable=False,
        batches_kept=None,
        loader={**loader, "multiprocessing_context": given.multiprocessing_context, "given": True},
        batch_signature="simulated",
        sample_bytes=sample_bytes,
        parameters=1_000_000,
        parameter_bytes=4_000_000,
        model_dtype="float32",
        has_conv_4d=has_conv_4d,
        has_batch_norm=has_conv_4d,
        deterministic=False,
        loss="simulated",
        loss_inferred=False,
        optimizer_name="AdamW",
        optimizer_kwargs={},
        optimizer_groups=[{"lr": 1e-3}],
        optimizer_implementations=("for-loop", "foreach", "fused"),
        optimizer_implementation_now=None,
        optimizer_assumed=False,
        workers_refused=None,
        caller={
            "num_threads": given.num_threads,
            "cudnn_benchmark": given.cudnn_benchmark,
            "start_method": "fork",
            "sharing_strategy": "file_descriptor",
        },
        fingerprint=f"simulated:{name}",
        batch_tensors=2,
    )
