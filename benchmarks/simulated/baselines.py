"""What others would do with the same budget on the same machine: random, Optuna's TPE, presets, coordinate descent.

None of them races at the end: the pick is what measured fastest. All trials but descent's and those of ``presets`` run
to their end. Batches are powers of two; compilation is in the space, all four modes of it, and so are checkpointing,
all precisions and workers that do not persist.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import optuna

from autotune.measurement import Measured, Outcome, Probe, TimedOut
from autotune.settings import Settings
from benchmarks.simulated.model import COMPILE_MODES, PRECISIONS
from benchmarks.simulated.trace import Trace
from benchmarks.simulated.world import World

__all__ = ["BASELINES"]

_WINDOW_S = {True: 2.5, False: 4.0}  # on a GPU, on a CPU: a rate good to 3 %, where four seconds suffice for that
_CAP_S = 60.0
_COMPILE_CAP_S = 180.0
_CUT_SHARE = {True: 0.85, False: 0.75}
_COMPILE_LEAST_S = 45.0

Choices = Mapping[str, tuple[Any, ...]]


class _Over(Exception):
    """The budget is used up."""


class _Asking:
    """Joint trials until the budget is used up; a trial that does not end within it counts for nothing."""

    def __init__(self, world: World, trace: Trace) -> None:
        self._world, self._trace = world, trace
        self.outcomes: list[Outcome] = []
        self.best: Measured | None = None
        self._seed = 0

    @property
    def left_s(self) -> float:
        return self._trace.budget_s - self._trace.bench.clock.now_s

    def __call__(self, settings: Settings, *, cuts: bool = False) -> Measured | None:
        """What it measured; None for a failure."""
        if self.left_s <= 0:
            raise _Over
        cap_s = _CAP_S if settings.compile_mode is None else _COMPILE_CAP_S
        cut_below = _CUT_SHARE[self._world.has_gpu] * self.best.samples_per_s if cuts and self.best else None
        probe = Probe(
            kind="joint",
            settings=settings,
            window_s=_WINDOW_S[self._world.has_gpu],
            deadline_s=min(cap_s, self.left_s),
            cut_below_samples_per_s=cut_below,
        )
        outcome = self._trace.bench.run(probe)
        self.outcomes.append(outcome)
        if isinstance(outcome, TimedOut) and self.left_s <= 1e-9:
            raise _Over
        if not isinstance(outcome, Measured):
            return None
        if not outcome.cut and (self.best is None or outcome.samples_per_s > self.best.samples_per_s):
            self.best = outcome
            self._trace.believe(settings)
        return outcome


def _run(search: Callable[[World, _Asking, int], None], name: str, world: World, budget_s: float, seed: int) -> Trace:
    bench = world.bench(seed)
    trace = Trace(world=world, strategy=name, budget_s=budget_s, seed=seed, bench=bench)
    asking = _Asking(world, trace)
    bench.start()
    with contextlib.suppress(_Over):  # as planned: each goes on until then
        search(world, asking, seed)
    trace.finish(asking.best.settings if asking.best else None, outcomes=asking.outcomes)
    return trace


def _choices(world: World) -> Choices:
    """The whole space."""
    gpu, cores, own = world.has_gpu, world.hardware.cores, world.baseline.batch_size or 1
    powers = range(int(math.log2(world.most_batch)) + 1)
    return {
        "batch_size": (own,) if world.candidates.locked else tuple(2**power for power in powers),
        "num_workers": tuple(range(cores + 1)),
        "prefetch_factor": (1, 2, 4, 8),
        "persistent_workers": (False, True),
        "pin_memory": (False, True) if gpu else (False,),
        "precision": PRECISIONS,
        "channels_last": (False, True),
        "compile_mode": COMPILE_MODES,
        "optimizer_implementation": (None, "fused"),
        "cudnn_benchmark": (False, True) if gpu else (False,),
        "activation_checkpointing": (False, True),
        "num_threads": (world.baseline.num_threads,) if gpu else tuple(range(1, cores + 1)),
    }


def _settings(world: World, values: Mapping[str, Any]) -> Settings:
    accumulation = world.baseline.gradient_accumulation_steps if world.candidates.locked else 1
    given = dict(values)
    workers = given.pop("num_workers")
    if not workers:
        del given["prefetch_factor"], given["persistent_workers"]
        return Settings(**given, gradient_accumulation_steps=accumulation)
    return Settings(**given, num_workers=workers, gradient_accumulation_steps=accumulation)


def _sampled(
    sampler: Callable[[int], optuna.samplers.BaseSampler], presets: bool, world: World, asking: _Asking, seed: int
) -> None:
    """One Optuna study over the whole space: counts as integers, all else as categories."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    choices = _choices(world)
    study = optuna.create_study(direction="maximize", sampler=sampler(_own_seed(world, seed)))
    for preset in _presets(world) if presets else ():
        study.enqueue_trial({name: _place(some, getattr(preset, name)) for name, some in choices.items()})
    while True:
        trial = study.ask()
        places = {name: _suggested(trial, name, len(some)) for name, some in choices.items()}
        outcome = asking(_settings(world, {name: some[places[name]] for name, some in choices.items()}), cuts=presets)
        if outcome is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, outcome.samples_per_s)


def _own_seed(world: World, seed: int) -> int:
    """Else every task would see the same few settings."""
    return 1000 * seed + zlib.crc32(world.name.encode()) % 1000


def _suggested(trial: optuna.Trial, name: str, count: int) -> int:
    if name in _NUMBERS:
        return trial.suggest_int(name, 0, count - 1)
    return int(trial.suggest_categorical(name, list(range(count))))


def _place(some: tuple[Any, ...], value: Any) -> int:
    """Of the nearest number, or of the value itself."""
    if value in some:
        return some.index(value)
    numbers = isinstance(value, int) and not isinstance(value, bool)
    return min(range(len(some)), key=lambda place: abs(some[place] - value)) if numbers else 0


def _presets(world: World) -> Iterator[Settings]:
    """The user's own, and what guides recommend: cautious, bold, with more workers, compiled."""
    own, cores = world.baseline, world.hardware.cores
    yield own
    native = world.candidates.values.get("precision", ())[:1]
    usual = own.replace(
        num_workers=max(1, min(4, cores - 1)),
        prefetch_factor=4,
        persistent_workers=True,
        pin_memory=world.has_gpu,
        optimizer_implementation="fused",
        precision=native[0] if native else own.precision,
    )
    yield usual
    bold = usual.replace(
        batch_size=min(4 * (own.batch_size or 1), world.most_batch),
        num_workers=max(1, cores - 1),
        channels_last=world.candidates.facts.has_conv_4d,
        cudnn_benchmark=world.has_gpu,
    )
    yield bold
    yield bold.replace(batch_size=min(16 * (own.batch_size or 1), world.most_batch))
    yield bold.replace(compile_mode="default")


def _descent(world: World, asking: _Asking, seed: int) -> None:
    """From the baseline, one knob after the other, each value tried from the best so far; compiling last; again."""
    asking(world.baseline)
    while True:
        before = asking.best
        for knob, values in _coordinates(world):
            for value in values:
                _step(world, asking, knob, value)
        for mode in ("default", "reduce-overhead"):
            if asking.left_s >= _COMPILE_LEAST_S and asking.best is not None:
                _step(world, asking, "compile_mode", mode)
        if asking.best is before:
            return


def _coordinates(world: World) -> Iterator[tuple[str, tuple[Any, ...]]]:
    cores, gpu = world.hardware.cores, world.has_gpu
    counts = dict.fromkeys((0, 1, 2, cores // 4, cores // 2, cores - 1, cores))
    yield "num_workers", tuple(counts)
    if not world.candidates.locked:
        yield "batch_size", (2.0, 2.0, 2.0, 2.0, 0.5)
    yield "precision", PRECISIONS[1:] if gpu else PRECISIONS[2:3]
    yield "channels_last", (True,) if world.candidates.facts.has_conv_4d else ()
    yield "optimizer_implementation", ("fused",)
    yield "cudnn_benchmark", (True,) if gpu else ()
    yield "pin_memory", (True,) if gpu else ()
    yield "prefetch_factor", (4,)
    yield "num_threads", () if gpu else tuple(range(1, cores + 1))


def _step(world: World, asking: _Asking, knob: str, value: Any) -> None:
    """Tries one value; moved to if it measured faster."""
    best = asking.best
    if best is None or (knob == "prefetch_factor" and not best.settings.num_workers):
        return
    if knob == "batch_size":
        value = max(1, min(int((best.settings.batch_size or 1) * value), world.most_batch))
    changed = best.settings.replace(**{knob: value})
    if changed not in {outcome.settings for outcome in asking.outcomes}:
        asking(changed, cuts=True)


_NUMBERS = ("batch_size", "num_workers", "prefetch_factor", "num_threads")


def _tpe(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=seed)


def _random(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


BASELINES: Mapping[str, Callable[[World, float, int], Trace]] = {
    "random": partial(_run, partial(_sampled, _random, False), "random"),
    "tpe": partial(_run, partial(_sampled, _tpe, False), "tpe"),
    "presets": partial(_run, partial(_sampled, _tpe, True), "presets"),
    "descent": partial(_run, _descent, "descent"),
}
