"""Questions about training that take a run of their own: the learning-rate range test and the gradient noise scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autotune.errors import DoesNotFitError, SettingsError, TaskError
from autotune.hardware import Hardware, Limits
from autotune.learning_rate import LrCurve, LrSuggestion, NoiseScale, SquareNorms, noise_scale, suggest
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.sandbox import InProcess, Sandbox
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.task import Facts, Task

__all__ = ["NOISE_NOTE", "find_lr", "measure_noise_scale", "noise_probe", "noise_scale_of"]

NOISE_NOTE = (
    "Measured at the weights as they were; it grows while the loss falls, by ten times and more over a training, so "
    "measure again later. It is a guide, not a bound on what trains."
)
_BATCHES_PER_GROUP = 8  # the two batch sizes differ by this factor
_SHARE_OF_DATA = 4  # a group takes at most one in so many samples, else it is no random draw any more
_FEWEST_SECONDS = 60.0  # a deadline for what hangs, not a budget
_DEADLINE = 3.0  # times the window: starting the loader and the last step come on top


def find_lr(
    task: Task,
    settings: Settings | None,
    *,
    low: float = 1e-7,
    high: float = 10.0,
    steps: int = 100,
    seeds: int = 3,
    time_budget_s: float = 120.0,
    isolate: bool = True,
    hardware: Hardware | None = None,
    current: Callable[[Facts], float | None] = lambda facts: facts.optimizer_kwargs.get("lr"),
) -> LrSuggestion:
    """The range test on a task; see ``TunedConfig.find_lr``.

    Args:
        task: What is trained; copied into the process in which the sweeps run.
        settings: What it is trained with; None: its baseline.
        low: Lowest learning rate.
        high: Highest.
        steps: Optimizer steps of a sweep.
        seeds: Sweeps.
        time_budget_s: Wall time of all sweeps aimed at, seconds.
        isolate: False: in this process.
        hardware: Used in place of detecting it.
        current: The rate that is set, out of the facts.

    Raises:
        SettingsError: An argument cannot be.
        TaskError: A sweep failed.
        DoesNotFitError: It ran out of memory.
    """
    _check_sweep(low, high, steps, seeds, time_budget_s)
    with _opened(task, hardware, isolate=isolate) as (box, facts):
        chosen = (settings or _baseline(task, facts, box.hardware)).replace(compile_mode=None)
        curves = []
        for seed in range(seeds):
            window_s = time_budget_s / seeds
            outcome = box.run(
                Probe(
                    kind="lr_range",
                    settings=chosen,
                    seed=seed,
                    steps=steps,
                    rates=(low, high),
                    window_s=window_s,
                    deadline_s=max(_FEWEST_SECONDS, _DEADLINE * window_s),
                )
            )
            curves.append(_curve(_measured(outcome, "range test")))
    return suggest(curves, current=current(facts), note=_sweep_note(facts, chosen))


def measure_noise_scale(
    task: Task,
    settings: Settings | None,
    *,
    time_budget_s: float = 60.0,
    isolate: bool = True,
    hardware: Hardware | None = None,
) -> NoiseScale:
    """The noise scale of a task; see ``TunedConfig.noise_scale``.

    Args:
        task: What is trained; copied into the process in which its gradients are taken.
        settings: Its batches are the small ones; None: those of the baseline.
        time_budget_s: Wall time aimed at, seconds.
        isolate: False: in this process.
        hardware: Used in place of detecting it.

    Raises:
        SettingsError: An argument cannot be.
        TaskError: It failed.
        DoesNotFitError: It ran out of memory.
    """
    _check_above("time_budget_s", time_budget_s, 0.0)
    with _opened(task, hardware, isolate=isolate) as (box, facts):
        chosen = settings or _baseline(task, facts, box.hardware)
        probe = noise_probe(chosen, facts, window_s=time_budget_s)
        return noise_scale_of(_measured(box.run(probe), "measurement of the noise scale"))


def noise_probe(settings: Settings, facts: Facts, *, window_s: float, deadline_s: float | None = None) -> Probe:
    """What to ask for the noise scale: batches of the settings' size, or smaller where the data are few.

    Args:
        settings: Precision, compilation and memory format are left out: they do not change it.
        facts: Of the task.
        window_s: Seconds aimed at.
        deadline_s: Seconds after which it is given up; None: three windows, a minute at least.
    """
    batch = settings.batch_size
    if batch is not None and facts.samples:
        batch = max(1, min(batch, facts.samples // (_SHARE_OF_DATA * _BATCHES_PER_GROUP)))
    plain = settings.replace(
        batch_size=batch,
        gradient_accumulation_steps=_BATCHES_PER_GROUP,
        precision="fp32",
        compile_mode=None,
        channels_last=False,
        activation_checkpointing=False,
        length_grouped=False,  # its batches are no random draw
    )
    deadline = max(_FEWEST_SECONDS, _DEADLINE * window_s) if deadline_s is None else deadline_s
    return Probe(kind="noise_scale", settings=plain, window_s=window_s, deadline_s=deadline)


def noise_scale_of(measured: Measured) -> NoiseScale:
    """The noise scale that a measured probe gives.

    Args:
        measured: Of the kind "noise_scale".
    """
    rows = measured.largest_batch_rows
    return noise_scale(
        [SquareNorms(small, large) for small, large in measured.square_norms],
        small_batch=rows,
        large_batch=rows * measured.settings.gradient_accumulation_steps,
        note=NOISE_NOTE,
    )


@contextmanager
def _opened(task: Task, hardware: Hardware | None, *, isolate: bool) -> Iterator[tuple[Sandbox | InProcess, Facts]]:
    found = hardware or Hardware.detect(device=task.device)
    limits = Limits.of(found)
    with Sandbox(task, found, limits) if isolate else InProcess(task, found, limits) as box:
        yield box, box.describe()


def _baseline(task: Task, facts: Facts, hardware: Hardware) -> Settings:
    rules = BatchRules(base_batch_size=task.base_batch_size)
    return Candidates.of(facts, hardware, Limits.of(hardware), rules, Space()).baseline


def _measured(outcome: Outcome, doing: str) -> Measured:
    if isinstance(outcome, Measured):
        return outcome
    if isinstance(outcome, OutOfMemory):
        raise DoesNotFitError(f"The {doing} ran out of memory: {outcome.message}", "Use a smaller batch.")
    why = f": {outcome.reason}" if isinstance(outcome, Rejected) else ""
    raise TaskError(f"The {doing} was {outcome.fate}{why}.".replace("..", "."), "Check that the task trains.")


def _curve(measured: Measured) -> LrCurve:
    losses = tuple(math.inf if loss is None else loss for _, loss in measured.sweep)
    return LrCurve(tuple(rate for rate, _ in measured.sweep), losses)


def _sweep_note(facts: Facts, settings: Settings) -> str:
    effective = settings.effective_batch_size
    said = [f"It is for {effective:,} samples per optimizer step." if effective else ""]
    if len(facts.optimizer_groups) > 1:
        said.append("It is the rate of the first parameter group; the others had their share of it.")
    return " ".join(filter(None, said))


def _check_sweep(low: float, high: float, steps: int, seeds: int, time_budget_s: float) -> None:
    _check_above("low", low, 0.0)
    _check_above("high", high, low)
    _check_above("time_budget_s", time_budget_s, 0.0)
    for name, value, least in (("steps", steps, 30), ("seeds", seeds, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SettingsError(f"{name}={value!r} is not possible.", f"Give a whole number of at least {least}.")


def _check_above(name: str, value: float, least: float) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not least < value < math.inf:
        raise SettingsError(f"{name}={value!r} is not possible.", f"Give a number above {least:g}.")
