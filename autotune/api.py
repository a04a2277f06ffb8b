"""The story of one call: what is trained and where, measured in a sandbox, searched, raced, handed back."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.config import TunedConfig
from autotune.config.assemble import assemble
from autotune.config.verdict import judge
from autotune.errors import SettingsError
from autotune.hardware import Hardware, Limits
from autotune.learning_rate import LrScaling
from autotune.measurement import Outcome, Probe
from autotune.planner import CPU, GPU, Found, Pace, Plan
from autotune.race import RaceResult, race
from autotune.report.narrator import Narrator, ProgressOption
from autotune.sandbox import InProcess, Sandbox
from autotune.space import BatchRules, Candidates, Space
from autotune.study import Study
from autotune.task import Task

__all__ = ["Options", "autotune", "tune"]


def autotune(
    model: Any,
    dataset: Any,
    *,
    loss_fn: Callable[..., Any] | None = None,
    training_step: Callable[..., Any] | None = None,
    optimizer: Any = None,
    base_batch_size: int | None = None,
    effective_batch_size: int | Literal["keep"] | None = None,
    max_batch_size: int | None = None,
    max_effective_batch_size: int | None = None,
    memory_margin: float = 0.05,
    max_grad_norm: float | None = None,
    lr_scaling: LrScaling | None = "linear",
    collate_fn: Callable[..., Any] | None = None,
    sampler: Any = None,
    shuffle: bool | None = None,
    device: Any = None,
    space: Space | None = None,
    time_budget_s: float = 120.0,
    storage: Any = None,
    study_name: str | None = None,
    seed: int = 0,
    isolate: bool = True,
    progress: ProgressOption = None,
    hardware: Hardware | None = None,
) -> TunedConfig:
    """Measures real training steps here and returns the fastest settings that could be proven.

    Args:
        model: ``nn.Module``, or a factory ``() -> nn.Module``.
        dataset: Dataset, iterable dataset, a factory of either, or your own DataLoader: its sampler, collate_fn,
            generator, … are kept, and its settings are the baseline.
        loss_fn: ``(output, target) -> scalar``. None: inferred, for measuring only.
        training_step: ``(model, batch) -> loss`` or ``(loss, weight)``, for everything else.
        optimizer: Optimizer, ``(params) -> Optimizer``, or None for AdamW with lr 1e-3 (assumed, and said).
        base_batch_size: Batch the learning rate was chosen for; None: the DataLoader's, else 32.
        effective_batch_size: Samples per optimizer step, locked to a number, or to what it was ("keep"); None: free
            up to ``max_effective_batch_size``.
        max_batch_size: Cap on the micro-batch.
        max_effective_batch_size: Cap on the effective batch; None: 8 times the base, or len(dataset) // 20 if less.
        memory_margin: Share of the memory to leave free, 0 to below 1.
        max_grad_norm: Clip gradients to this norm.
        lr_scaling: "linear", "sqrt", "auto" or None: how the learning rate follows the effective batch.
        collate_fn: For a dataset; as in DataLoader.
        sampler: For a dataset; as in DataLoader.
        shuffle: For a dataset; None: True for map-style data without a sampler.
        device: Where to train; None: the accelerator if there is one, else the CPU.
        space: Your own limits on what may be tried.
        time_budget_s: Upper bound on the wall time, seconds.
        storage: Optuna storage (URL, journal file or object); None keeps the study in memory.
        study_name: Continue or name a study in ``storage``.
        seed: Seeds everything random in the trials.
        isolate: Measure in a process of its own. False: in this one, without its protection.
        progress: None: a live line if stderr is a terminal; False: silent; a callable gets each ``Progress``.
        hardware: A record to use in place of detecting it.

    Returns:
        The tuned config: settings, evidence, and builders for loader, optimizer and train step.

    Raises:
        SettingsError: An argument cannot be.
        TaskError: The task cannot be trained as handed over.
        DoesNotFitError: Not even a batch of one fits in memory.
        SandboxError: The process for the trials could not be started.
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
    return tune(
        task,
        effective_batch_size=effective_batch_size,
        max_batch_size=max_batch_size,
        max_effective_batch_size=max_effective_batch_size,
        memory_margin=memory_margin,
        lr_scaling=lr_scaling,
        space=space,
        time_budget_s=time_budget_s,
        storage=storage,
        study_name=study_name,
        seed=seed,
        isolate=isolate,
        progress=progress,
        hardware=hardware,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to tune; attributes mirror the arguments of ``autotune()``."""

    effective_batch_size: int | Literal["keep"] | None = None
    max_batch_size: int | None = None
    max_effective_batch_size: int | None = None
    memory_margin: float = 0.05
    lr_scaling: LrScaling | None = "linear"
    space: Space | None = None
    time_budget_s: float = 120.0
    storage: Any = None
    study_name: str | None = None
    seed: int = 0
    isolate: bool = True
    progress: ProgressOption = None
    hardware: Hardware | None = None

    def __post_init__(self) -> None:
        _check_number("time_budget_s", self.time_budget_s, above=0.0, below=float("inf"))
        _check_number("memory_margin", self.memory_margin, above=-1e-9, below=1.0)
        if self.lr_scaling not in ("linear", "sqrt", "auto", None):
            raise SettingsError(
                f"lr_scaling={self.lr_scaling!r} is not possible.", 'Use "linear", "sqrt", "auto" or None.'
            )
        if type(self.seed) is not int:
            raise SettingsError(f"seed={self.seed!r} is not possible.", "Give an int.")
        if self.space is not None and not isinstance(self.space, Space):
            raise SettingsError(f"space={self.space!r} is no Space.", "Use autotune.Space(num_workers=[0, 2]).")

    def batch_rules(self, task: Task) -> BatchRules:
        """The caller's bounds on batch sizes."""
        return BatchRules(
            base_batch_size=task.base_batch_size,
            effective_batch_size=self.effective_batch_size,
            max_batch_size=self.max_batch_size,
            max_effective_batch_size=self.max_effective_batch_size,
        )


def tune(task: Task, **options: Any) -> TunedConfig:
    """``autotune()`` for a task that is a ``Task`` already.

    Args:
        task: What to train.
        **options: See ``Options``.
    """
    call = Options(**options)
    rules = call.batch_rules(task)
    started_s = time.perf_counter()
    hardware = _hardware(task, call)
    limits = Limits.of(hardware)
    with (
        Study(call.storage, call.study_name, seed=call.seed) as study,
        Narrator(call.progress, call.time_budget_s) as narrator,
        _open(task, hardware, limits, call) as sandbox,
    ):
        narrator.say("start", "starting the process in which everything is measured")
        facts = sandbox.describe()
        hardware = sandbox.hardware
        pace = GPU if hardware.accelerator else CPU
        candidates = Candidates.of(facts, hardware, limits, rules, call.space or Space())
        search = Plan(
            candidates=candidates,
            hardware=hardware,
            pace=pace,
            study=study,
            run=sandbox.run,
            clock=time.perf_counter,
            budget_s=call.time_budget_s,
            started_s=started_s,
            say=narrator.trial,
            memory_margin=call.memory_margin,
            seed=call.seed,
        )
        run = _Run(plan=search, sandbox=sandbox, study=study, narrator=narrator, pace=pace)
        run.go()
        return _conclude(task, call, hardware, run)


@dataclass(kw_only=True)
class _Run:
    """Search and race within one sandbox; survives Ctrl-C with what was proven until then."""

    plan: Plan
    sandbox: Sandbox | InProcess
    study: Study
    narrator: Narrator
    pace: Pace
    found: Found = dataclasses.field(default_factory=lambda: Found(baseline=None, finalists=(), stopped="interrupted"))
    races: Sequence[RaceResult] = ()
    interrupted: bool = False
    spent_s: dict[str, float] = dataclasses.field(default_factory=dict)

    def go(self) -> None:
        try:
            with self._timed("search"):
                self.found = self.plan.search()
            with self._timed("race"):
                self.races = self._race()
        except KeyboardInterrupt:
            self.interrupted = True
            self.narrator.say("interrupted", "Ctrl-C: only what is proven is returned")

    def _race(self) -> list[RaceResult]:
        finalists = [one.settings for one in self.found.finalists]
        if self.found.baseline is None or not finalists:
            return []
        baseline = self.found.baseline.settings
        self.narrator.say("race", f"racing {len(finalists)} finalist(s) against the baseline, interleaved")
        return race(
            baseline,
            finalists,
            run=self._lap,
            clock=self.plan.clock,
            budget_s=self.plan.started_s + self.plan.budget_s - self.plan.clock(),
            margin=self.pace.margin,
            seed=self.plan.seed,
        )

    def _lap(self, probe: Probe) -> Outcome:
        outcome = self.sandbox.run(probe)
        self.study.record(outcome)
        self.narrator.lap(outcome)
        return outcome

    def _timed(self, name: str) -> _Stopwatch:
        return _Stopwatch(self.spent_s, name)


class _Stopwatch:
    def __init__(self, spent_s: dict[str, float], name: str) -> None:
        self._spent_s, self._name = spent_s, name

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._spent_s[self._name] = time.perf_counter() - self._begin


def _hardware(task: Task, call: Options) -> Hardware:
    if call.hardware is None:
        return Hardware.detect(device=task.device)
    return dataclasses.replace(call.hardware, accelerator=None) if task.device == "cpu" else call.hardware


def _open(task: Task, hardware: Hardware, limits: Limits, call: Options) -> Sandbox | InProcess:
    return Sandbox(task, hardware, limits) if call.isolate else InProcess(task, hardware, limits)


def _conclude(task: Task, call: Options, hardware: Hardware, run: _Run) -> TunedConfig:
    candidates = run.plan.candidates
    verdict = judge(
        candidates.baseline,
        run.found,
        run.races,
        outcomes=run.study.outcomes,
        dropped=candidates.dropped,
        warnings=(*_assumptions(candidates), *run.sandbox.warnings, *run.study.warnings, *hardware.notes),
        spent_s={"start": run.sandbox.start_s, **run.spent_s},
        interrupted=run.interrupted,
    )
    return assemble(verdict, candidates, task=task, hardware=hardware, lr_scaling=call.lr_scaling)


def _assumptions(candidates: Candidates) -> list[str]:
    facts, said = candidates.facts, []
    if not candidates.baseline_given:
        said.append("The baseline is assumed defaults; pass your DataLoader to compare with yours.")
    if facts.optimizer_assumed:
        said.append("No optimizer was given: AdamW with lr 1e-3 is assumed.")
    if facts.loss_inferred:
        said.append(f"The loss was inferred for measuring only: {facts.loss}; pass loss_fn to train.")
    return said


def _check_number(name: str, value: object, *, above: float, below: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not above < value < below:
        raise SettingsError(f"{name}={value!r} is not possible.", f"Give a number above {max(above, 0.0):g}.")
