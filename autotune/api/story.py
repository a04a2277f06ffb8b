"""One call, top to bottom."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from autotune.api.cache import Cache, unsettled_because
from autotune.api.environment import mode
from autotune.api.noise import NoiseBound, bounded_by_noise
from autotune.api.options import Options
from autotune.api.ranks import refuse_ranks
from autotune.api.run import Run
from autotune.config import TunedConfig
from autotune.config.assemble import assemble
from autotune.config.failures import failed_trials
from autotune.config.page_cache import page_cache_doubts
from autotune.config.spending import spending
from autotune.config.verdict import judge
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured
from autotune.planner import CPU, GPU, Plan
from autotune.report.interrupt import heeding, noticing_interrupt
from autotune.report.narrator import Narrator
from autotune.sandbox import InProcess, Sandbox
from autotune.space import Candidates, Space
from autotune.study import Study
from autotune.task import Task

__all__ = ["detected", "opened", "tune"]

# A child that imports torch on a busy machine needs this long whatever the budget is.
_LEAST_START_S = 30.0


def tune(task: Task, **options: Any) -> TunedConfig:
    """``autotune()`` for a task that is a ``Task`` already.

    Args:
        task: What to train.
        **options: See ``Options``.

    Raises:
        AutotuneError: As ``autotune()``.
    """
    call, wanted = Options(**options), mode()
    if wanted in ("tune", "force"):
        refuse_ranks()
    rules = call.batch_rules(task)
    started_s = time.perf_counter()
    hardware = detected(task, call)
    limits = Limits.of(hardware)
    with (
        Study(call.storage, call.study_name, seed=call.seed) as study,
        Narrator(call.progress, call.time_budget_s) as narrator,
        opened(task, hardware, limits, call, narrator) as sandbox,
        noticing_interrupt() as pressed,
    ):
        answer = heeding(pressed, sandbox.run)
        facts, hardware = sandbox.describe(), sandbox.hardware
        candidates = Candidates.of(facts, hardware, limits, rules, call.space or Space())
        cache = Cache.of(call, task, candidates, hardware, wanted)
        if (stored := cache.answer(answer)) is not None:
            return stored
        pace = GPU if hardware.accelerator else CPU
        start_s = time.perf_counter() - started_s
        noise = bounded_by_noise(call, candidates, answer)
        search = Plan(
            candidates=noise.candidates,
            hardware=hardware,
            pace=pace,
            study=study,
            run=answer,
            clock=time.perf_counter,
            started_s=started_s,
            say=narrator.trial,
            earlier=call.earlier or study.earlier or cache.start(),
            budget_s=call.time_budget_s,
            memory_margin=call.memory_margin,
            seed=call.seed,
        )
        search.ask.start_s = start_s
        run = Run(plan=search, run=answer, sandbox=sandbox, study=study, narrator=narrator, pace=pace)
        run.go()
        return _kept(cache, _conclude(task, call, hardware, run, start_s, noise), run)


def _kept(cache: Cache, tuned: TunedConfig, run: Run) -> TunedConfig:
    """The answer, stored for the next call where it is one."""
    others = {one.settings for one in run.study.outcomes if isinstance(one, Measured) and one.kind == "joint"}
    tried = len(others - {run.plan.candidates.baseline})
    unsettled = unsettled_because(tuned, run.outcome, run.races, tried=tried, interrupted=run.interrupted)
    return cache.keep(tuned, unsettled=unsettled)


def detected(task: Task, call: Options) -> Hardware:
    """The hardware to tune for."""
    if call.hardware is None:
        return Hardware.detect(device=task.device)
    return dataclasses.replace(call.hardware, accelerator=None) if task.device == "cpu" else call.hardware


def opened(task: Task, hardware: Hardware, limits: Limits, call: Options, narrator: Narrator) -> Sandbox | InProcess:
    """Where probes are answered; to be entered."""
    if not call.isolate:
        return InProcess(task, hardware, limits)
    narrator.say("start", "starting the process in which everything is measured")
    return Sandbox(task, hardware, limits, start_deadline_s=max(_LEAST_START_S, call.time_budget_s))


def _conclude(
    task: Task, call: Options, hardware: Hardware, run: Run, start_s: float, noise: NoiseBound
) -> TunedConfig:
    candidates = run.plan.candidates
    verdict = judge(
        candidates.baseline,
        run.outcome,
        run.races,
        outcomes=run.study.outcomes,
        dropped=candidates.dropped,
        warnings=(
            *_assumptions(candidates),
            *noise.said,
            *run.sandbox.warnings,
            *run.study.warnings,
            *run.narrator.warnings,
            *hardware.notes,
            *failed_trials(run.study.outcomes, candidates.baseline),
            *page_cache_doubts(run.study.outcomes, samples=candidates.facts.samples, ram_bytes=hardware.ram_bytes),
        ),
        spent_s=spending(
            run.study.outcomes,
            start_s=start_s,
            search_s=run.spent_s.get("search", 0.0),
            race_s=run.spent_s.get("race", 0.0),
        )
        | ({"noise scale": noise.spent_s} if noise.spent_s else {}),
        interrupted=run.interrupted,
    )
    return assemble(
        verdict,
        candidates,
        task=task,
        hardware=hardware,
        lr_scaling=call.lr_scaling,
        weight_decay_scaling=call.weight_decay_scaling,
        noise_scale=noise.noise_scale,
    )


def _assumptions(candidates: Candidates) -> list[str]:
    facts, said = candidates.facts, []
    if not candidates.baseline_given:
        said.append("The baseline is assumed defaults; pass your DataLoader to compare with yours.")
    if facts.optimizer_assumed:
        said.append("No optimizer was given: AdamW with lr 1e-3 is assumed.")
    if facts.loss_inferred:
        said.append(f"The loss was inferred for measuring only: {facts.loss}; pass loss_fn to train.")
    said += facts.warnings
    return said
