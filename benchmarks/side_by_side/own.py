"""This package as a peer, and what articles advise."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autotune import Settings
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe, outcome_from_json
from benchmarks.probing import Bench, opened
from benchmarks.side_by_side.answers import Answer, Request, load

__all__ = ["advised", "articles", "cap_of", "fitted", "ours", "training_steps", "with_workers"]

ARTICLES_WORKERS = 4
_FIT_WINDOW_S, _FIT_DEADLINE_S = 0.5, 120.0
_OURS = "torch-autotune"


def cap_of(bench: Bench) -> int:
    """Largest batch that is allowed: the product's own default cap."""
    return min(bench.candidates.max_batch_size, bench.candidates.max_effective_batch_size)


def with_workers(bench: Bench, settings: Settings, workers: int) -> tuple[Settings, list[str]]:
    """``settings`` with workers that are kept between epochs, as far as the data allows any."""
    refused = bench.candidates.dropped.get("num_workers")
    if refused:
        return settings, [f"no workers: {refused}"]
    most = min(workers, bench.candidates.most_workers)
    keep = "persistent_workers" not in bench.candidates.dropped
    return settings.replace(num_workers=most, prefetch_factor=2, persistent_workers=keep), []


def articles(request: Request) -> Answer:
    """Four workers, pinned memory, autocast to bf16, channels_last, the largest batch up to the cap that runs."""
    with opened(load(request), locked=request.locked) as bench:
        began = time.perf_counter()
        settings, notes = advised(bench, request)
        settings, tried = fitted(bench, settings, request)
        if not isinstance(tried[-1], Measured):
            notes.append(f"seen to run before the race: no ({tried[-1].fate})")
        return Answer(
            peer="articles",
            fate="answered",
            changes=settings.to_json(),
            call=f"{ARTICLES_WORKERS} workers, pin_memory, bf16 autocast, channels_last, batch {settings.batch_size}",
            tuning_s=time.perf_counter() - began,
            steps=training_steps(tried),
            trials=len(tried),
            notes=tuple(notes),
        )


def advised(bench: Bench, request: Request) -> tuple[Settings, list[str]]:
    """The advice as settings, with what does not apply here."""
    settings, notes = with_workers(bench, bench.candidates.baseline, ARTICLES_WORKERS)
    settings = settings.replace(precision="bf16-mixed", pin_memory=bench.hardware.accelerator is not None)
    if bench.hardware.accelerator is None:
        notes.append("pinned memory has no meaning without an accelerator: left out")
    if bench.candidates.facts.has_conv_4d:
        settings = settings.replace(channels_last=True)
    else:
        notes.append("no images: channels_last left out")
    if request.locked:
        notes.append("the batch is locked: the largest one left out")
    elif settings.batch_size is not None:
        settings = settings.replace(batch_size=request.cap)
    return settings, notes


def fitted(bench: Bench, settings: Settings, request: Request) -> tuple[Settings, list[Outcome]]:
    """``settings`` with its batch halved until it runs, but not below the base; and what was tried."""
    tried: list[Outcome] = []
    while True:
        probe = Probe(kind="joint", settings=settings, window_s=_FIT_WINDOW_S, deadline_s=_FIT_DEADLINE_S)
        tried.append(bench.run(probe))
        size = settings.batch_size or 1
        if not isinstance(tried[-1], OutOfMemory) or request.locked or size <= request.base:
            return settings, tried
        settings = settings.replace(batch_size=max(request.base, size // 2))


def ours(request: Request) -> Answer:
    """``autotune(model, loader, ...)`` with the budget and nothing else, the batch locked where it is for all."""
    from optuna.storages import InMemoryStorage

    from autotune import autotune

    job = load(request)
    storage = InMemoryStorage()  # only to count the steps afterwards
    loader = job.loader()
    began = time.perf_counter()
    config = autotune(
        job.model,
        loader,
        loss_fn=job.loss_fn,
        optimizer=job.optimizer,
        effective_batch_size="keep" if request.locked else None,
        time_budget_s=request.budget_s,
        seed=request.seed,
        storage=storage,
        progress=False,
    )
    tuning_s = time.perf_counter() - began
    evidence = config.evidence
    speedup = evidence.speedup
    locked = ', effective_batch_size="keep"' if request.locked else ""
    return Answer(
        peer="ours",
        fate="answered",
        changes=config.settings.to_json(),
        call=f"autotune(model, loader, loss_fn=, optimizer=, time_budget_s={request.budget_s:g}{locked})",
        version=_version(),
        tuning_s=tuning_s,
        steps=training_steps(_outcomes(storage)),
        trials=evidence.trials,
        claimed_ratio=speedup.median if speedup and not evidence.kept_baseline else 1.0,
        claimed_samples_per_s=evidence.samples_per_s,
        notes=(evidence.reason,),
    )


def training_steps(outcomes: Sequence[Outcome]) -> int:
    """Steps really taken; laps of objects that are still there count their steps from their first lap on."""
    total, of_laps = 0, dict[Settings, int]()
    for outcome in outcomes:
        if not isinstance(outcome, Measured):
            continue
        if outcome.kind != "lap":
            total += outcome.steps
            continue
        before = of_laps.get(outcome.settings, 0)
        total += outcome.steps - before if outcome.steps > before else outcome.steps
        of_laps[outcome.settings] = outcome.steps
    return total


def _outcomes(storage: Any) -> list[Outcome]:
    import optuna

    found = []
    for name in optuna.get_all_study_names(storage):
        for trial in optuna.load_study(study_name=name, storage=storage).trials:
            found.append(outcome_from_json(json.loads(trial.user_attrs["outcome"])))
    return found


def _version() -> str:
    try:
        return version(_OURS)
    except PackageNotFoundError:
        return "this checkout"
