"""Optuna's default sampler over the space that the tuner has here: no presets, no plan, no race; the best seen wins.

Once with the whole space and once without ``torch.compile``: where compiling takes most of a minute, a sampler that
does not know it spends its budget on a handful of trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import optuna

from autotune import Settings
from autotune.errors import SettingsError
from autotune.measurement import Measured, Outcome, Probe
from autotune.planner import CPU, GPU
from autotune.space import Candidates
from benchmarks.probing import opened
from benchmarks.side_by_side.answers import Answer, Request, load
from benchmarks.side_by_side.own import training_steps

__all__ = ["Searched", "search", "suggested", "tpe", "tpe_eager"]

LEAST_TRIALS = 25
_MOST_BUDGETS = 3.0
"""Fewer trials than that are made where they take more than so many budgets."""
_DEADLINE_S = 60.0
_MOST_PREFETCH = 8
_SMALLEST_SHARE = 4  # of the base batch


@dataclass(slots=True)
class Searched:
    """What a search saw."""

    outcomes: list[Outcome] = field(default_factory=list)
    refused: int = 0
    """Proposals that are no settings, or would break a limit of the machine."""

    @property
    def best(self) -> Measured | None:
        measured = [one for one in self.outcomes if isinstance(one, Measured)]
        return max(measured, key=lambda one: one.samples_per_s, default=None)


def tpe(request: Request) -> Answer:
    """Plain TPE: at least 25 trials, and on until the budget is over."""
    return _answer("tpe", request, left_out=())


def tpe_eager(request: Request) -> Answer:
    """The same without compiling."""
    return _answer("tpe-eager", request, left_out=("compile_mode", "compile_scope"))


def _answer(peer: str, request: Request, *, left_out: tuple[str, ...]) -> Answer:
    job = load(request)
    began = time.perf_counter()
    with opened(job, locked=request.locked) as bench:
        found = search(
            without(bench.candidates, left_out),
            cores=bench.hardware.cores,
            cap=request.cap,
            run=bench.run,
            budget_s=request.budget_s,
            window_s=(GPU if bench.hardware.accelerator else CPU).window_s,
            least_trials=3 if request.tiny else LEAST_TRIALS,
            seed=request.seed,
            started_s=began,
        )
    best = found.best
    if best is None:
        raise RuntimeError(f"none of {len(found.outcomes)} trials ran to its end")
    failed = [one.fate for one in found.outcomes if not isinstance(one, Measured)]
    notes = [f"{len(failed)} trials failed ({', '.join(sorted(set(failed)))})"] if failed else []
    notes += [f"{found.refused} proposals were not possible"] if found.refused else []
    return Answer(
        peer=peer,
        fate="answered",
        changes=best.settings.to_json(),
        call=f"create_study(sampler=TPESampler(seed={request.seed})), ask and tell",
        version=optuna.__version__,
        tuning_s=time.perf_counter() - began,
        steps=training_steps(found.outcomes),
        trials=len(found.outcomes),
        claimed_samples_per_s=best.samples_per_s,
        notes=tuple(notes),
    )


def without(candidates: Candidates, knobs: tuple[str, ...]) -> Candidates:
    """The space without some knobs."""
    for knob in knobs:
        candidates = candidates.without(knob, "left out of this search")
    return candidates


def search(
    candidates: Candidates,
    *,
    cores: int,
    cap: int,
    run: Callable[[Probe], Outcome],
    budget_s: float,
    window_s: float,
    least_trials: int,
    seed: int,
    started_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Searched:
    """Asks and tells until the budget is over, but ``least_trials`` times at least (within three budgets)."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    found = Searched()
    while True:
        spent_s = clock() - started_s
        enough = len(study.trials) >= least_trials
        if (enough and spent_s >= budget_s) or spent_s >= _MOST_BUDGETS * budget_s:
            return found
        trial = study.ask()
        settings = suggested(trial, candidates, cores=cores, cap=cap)
        if settings is None or candidates.refusal(settings):
            found.refused += 1
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        number = len(found.outcomes)
        outcome = run(
            Probe(kind="joint", settings=settings, window_s=window_s, deadline_s=_DEADLINE_S, seed=seed + number)
        )
        found.outcomes.append(outcome)
        if isinstance(outcome, Measured):
            study.tell(trial, outcome.samples_per_s)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)


def suggested(trial: optuna.Trial, candidates: Candidates, *, cores: int, cap: int) -> Settings | None:
    """One proposal: numbers in their whole range, few-valued knobs among what is worth trying; None: no settings."""
    baseline, dropped = candidates.baseline, candidates.dropped
    chosen: dict[str, Any] = {
        name: trial.suggest_categorical(name, [getattr(baseline, name), *values])
        for name, values in candidates.values.items()
        if values
    }
    if "batch_size" not in dropped and not candidates.locked and baseline.batch_size is not None:
        smallest = max(1, baseline.batch_size // _SMALLEST_SHARE)
        chosen["batch_size"] = trial.suggest_int("batch_size", smallest, max(smallest, cap), log=True)
    if "num_threads" not in dropped:
        chosen["num_threads"] = trial.suggest_int("num_threads", 1, cores)
    if "num_workers" not in dropped:
        chosen["num_workers"] = trial.suggest_int("num_workers", 0, min(2 * cores, candidates.most_workers))
        if chosen["num_workers"]:
            chosen["prefetch_factor"] = trial.suggest_int("prefetch_factor", 1, _MOST_PREFETCH)
            if "persistent_workers" not in dropped:
                chosen["persistent_workers"] = trial.suggest_categorical("persistent_workers", [False, True])
    try:
        return baseline.replace(**chosen)
    except SettingsError:
        return None
