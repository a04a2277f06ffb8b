"""Learning-rate schedules as data: torch's own class names and arguments, with step counts that fit the training. Pure.

One optimizer step is one step of a schedule, whatever the accumulation; only ``plateau`` moves once per epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from autotune.errors import SettingsError

__all__ = ["SCHEDULE_NAMES", "Schedule", "ScheduleKind", "make_schedule"]

ScheduleKind = Literal["onecycle", "cyclic", "cosine", "step", "multistep", "plateau"]

_MODULE = "torch.optim.lr_scheduler."
_ONE_CYCLE = (
    "max_lr",
    "total_steps",
    "pct_start",
    "anneal_strategy",
    "cycle_momentum",
    "base_momentum",
    "max_momentum",
    "div_factor",
    "final_div_factor",
    "three_phase",
)
_CYCLIC = (
    "base_lr",
    "max_lr",
    "step_size_up",
    "step_size_down",
    "mode",
    "gamma",
    "scale_mode",
    "cycle_momentum",
    "base_momentum",
    "max_momentum",
)
_PLATEAU = ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps")
SCHEDULE_NAMES: Mapping[str, frozenset[str]] = {
    "OneCycleLR": frozenset(_ONE_CYCLE),
    "CyclicLR": frozenset(_CYCLIC),
    "CosineAnnealingLR": frozenset({"T_max", "eta_min"}),
    "LinearLR": frozenset({"start_factor", "end_factor", "total_iters"}),
    "SequentialLR": frozenset({"milestones"}),
    "StepLR": frozenset({"step_size", "gamma"}),
    "MultiStepLR": frozenset({"milestones", "gamma"}),
    "ReduceLROnPlateau": frozenset(_PLATEAU),
}
"""The only classes of ``torch.optim.lr_scheduler`` that are ever built, each with the arguments it may get."""

# The shape is that of Smith & Topin 2017, "Super-Convergence" (arXiv:1708.07120); that it goes up for 30 %, from a 25th
# of the highest rate, are torch's own defaults.
_PCT_START, _DIV_FACTOR = 0.3, 25.0
# Smith 2017, "Cyclical Learning Rates for Training Neural Networks" (arXiv:1506.01186): half a cycle of 2 to 10 epochs
# (section 3.2); the lowest rate a third or a fourth of the highest (section 3.3).
_HALF_CYCLE_EPOCHS, _CYCLIC_FLOOR = 2, 1 / 4
# Goyal et al. 2017, sections 2.2 and 5.1: 5 of 90 epochs.
_WARMUP_SHARE = 5 / 90
_WARMUP_START = 0.01
# He et al. 2016, "Deep Residual Learning for Image Recognition" (arXiv:1512.03385), section 4.2: a tenth at 32k and
# again at 48k of 64k steps.
_MILESTONES = (0.5, 0.75)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A scheduler of ``torch.optim.lr_scheduler``: its class, its arguments besides the optimizer, and what it fits."""

    kind: ScheduleKind
    epochs: int
    updates_per_epoch: int
    """Optimizer steps per epoch that the counts rest on."""
    interval: Literal["step", "epoch"]
    """When to call its ``step()``: after each optimizer step (``TrainStep`` does), or after each epoch, by yourself,
    with the figure to watch."""
    name: str
    """``torch.optim.lr_scheduler.OneCycleLR`` and the like."""
    kwargs: Mapping[str, Any]
    schedulers: tuple[Mapping[str, Any], ...] = ()
    """Of ``SequentialLR``: name and kwargs of its parts, in their order."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What was asked for beside kind and epochs, so that it can be made again for other settings."""

    def __post_init__(self) -> None:
        for name, kwargs in ((self.name, self.kwargs), *((part["name"], part["kwargs"]) for part in self.schedulers)):
            _check_name(name, kwargs)
        if bool(self.schedulers) != (self.name == f"{_MODULE}SequentialLR"):
            raise SettingsError(f"{self.name} and its schedulers contradict each other.", "")
        if any(part["name"] == self.name for part in self.schedulers):
            raise SettingsError(f"{self.name} cannot hold another.", "")

    @property
    def warms_up(self) -> bool:
        """Whether it starts below its highest rate, so that no other warm-up is needed."""
        return self.kind in ("onecycle", "cyclic") or bool(self.schedulers)

    def to_json(self) -> dict[str, Any]:
        """JSON values in a stable order."""
        parts = [{"name": part["name"], "kwargs": _plain(part["kwargs"])} for part in self.schedulers]
        return {
            "kind": self.kind,
            "epochs": self.epochs,
            "updates_per_epoch": self.updates_per_epoch,
            "interval": self.interval,
            "name": self.name,
            "kwargs": _plain(self.kwargs),
            "schedulers": parts,
            "options": _plain(self.options),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schedule:
        """The schedule ``to_json`` wrote.

        Raises:
            SettingsError: A name or an argument that is not in ``SCHEDULE_NAMES``.
        """
        return cls(**{**data, "schedulers": tuple(data["schedulers"])})


def make_schedule(
    kind: ScheduleKind,
    *,
    epochs: int,
    updates_per_epoch: int,
    lrs: Sequence[float],
    warmup_steps: int = 0,
    **options: Any,
) -> Schedule:
    """A schedule whose counts fit a training.

    Args:
        kind: "onecycle": up to the rate and far down again (Smith & Topin 2017). "cyclic": up and down, over and over
            (Smith 2017). "cosine": a linear warm-up, then down along half a cosine (Loshchilov & Hutter 2017, "SGDR",
            arXiv:1608.03983, equation 5, one cycle). "step": a tenth after each third of the epochs (about as Goyal et
            al. 2017, section 5.1, do after 30, 60 and 80 of 90). "multistep": a tenth after a half and again after
            three quarters (He et al. 2016, section 4.2). "plateau": a tenth when a figure stops improving (as in their
            section 3.4).
        epochs: Epochs of the training.
        updates_per_epoch: Optimizer steps per epoch.
        lrs: The highest learning rate of each parameter group.
        warmup_steps: Optimizer steps that a change of the batch asks to warm up for; a cosine's is at least as long.
        **options: Arguments of torch's class, and in place of its counts: ``warmup_epochs`` and ``start_factor``
            (cosine), ``step_epochs`` (step), ``milestone_epochs`` (multistep), ``half_cycle_epochs`` (cyclic).

    Returns:
        The schedule. Momentum is left alone unless ``cycle_momentum=True``: torch would change yours in silence.

    Raises:
        SettingsError: An unknown kind or option, or a count that cannot be.
    """
    if kind not in get_args(ScheduleKind):
        raise SettingsError(f"kind={kind!r} is no schedule.", f"Use one of {', '.join(get_args(ScheduleKind))}.")
    for name, value in (("epochs", epochs), ("updates_per_epoch", updates_per_epoch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingsError(f"{name}={value!r} is not possible.", "Give a whole number of at least 1.")
    plan = _Plan(epochs, updates_per_epoch, tuple(lrs), warmup_steps)
    name, kwargs, parts = _MAKERS[kind](plan, dict(options))
    return Schedule(
        kind=kind,
        epochs=epochs,
        updates_per_epoch=updates_per_epoch,
        interval="epoch" if kind == "plateau" else "step",
        name=_MODULE + name,
        kwargs=kwargs,
        schedulers=tuple({"name": _MODULE + part, "kwargs": arguments} for part, arguments in parts),
        options=options,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    epochs: int
    updates_per_epoch: int
    lrs: tuple[float, ...]
    warmup_steps: int

    @property
    def total(self) -> int:
        return self.epochs * self.updates_per_epoch

    def steps(self, name: str, epochs: Any) -> int:
        if isinstance(epochs, bool) or not isinstance(epochs, (int, float)) or not 0 <= epochs <= self.epochs:
            raise SettingsError(f"{name}={epochs!r} is not possible.", f"Give epochs, 0 to {self.epochs}.")
        return round(epochs * self.updates_per_epoch)

    def highest(self) -> float | list[float]:
        if not self.lrs:
            raise SettingsError("The optimizer has no learning rate to be the highest.", "Pass max_lr=.")
        return self.lrs[0] if len(set(self.lrs)) == 1 else list(self.lrs)


_Made = tuple[str, dict[str, Any], list[tuple[str, dict[str, Any]]]]


def _onecycle(plan: _Plan, options: dict[str, Any]) -> _Made:
    kwargs = {
        "max_lr": options.pop("max_lr", None) or plan.highest(),
        "total_steps": plan.total,
        "pct_start": _PCT_START,
        "div_factor": _DIV_FACTOR,
        "cycle_momentum": False,
    }
    return "OneCycleLR", kwargs | _rest("onecycle", "OneCycleLR", options, {"total_steps"}), []


def _cyclic(plan: _Plan, options: dict[str, Any]) -> _Made:
    half = options.pop("half_cycle_epochs", min(_HALF_CYCLE_EPOCHS, plan.epochs / 2))
    highest = options.pop("max_lr", None) or plan.highest()
    floor = [rate * _CYCLIC_FLOOR for rate in highest] if isinstance(highest, list) else highest * _CYCLIC_FLOOR
    kwargs = {
        "base_lr": floor,
        "max_lr": highest,
        "step_size_up": max(1, plan.steps("half_cycle_epochs", half)),
        "cycle_momentum": False,
    }
    return "CyclicLR", kwargs | _rest("cyclic", "CyclicLR", options, set()), []


def _cosine(plan: _Plan, options: dict[str, Any]) -> _Made:
    asked = options.pop("warmup_epochs", None)
    start = options.pop("start_factor", _WARMUP_START)
    least = max(plan.warmup_steps, math.ceil(_WARMUP_SHARE * plan.total))
    warmup = min(least, plan.total // 2) if asked is None else plan.steps("warmup_epochs", asked)
    cosine = {"T_max": max(1, plan.total - warmup), "eta_min": 0.0}
    cosine |= _rest("cosine", "CosineAnnealingLR", options, {"T_max"})
    if not warmup:
        return "CosineAnnealingLR", cosine, []
    linear = {"start_factor": start, "end_factor": 1.0, "total_iters": warmup}
    return "SequentialLR", {"milestones": [warmup]}, [("LinearLR", linear), ("CosineAnnealingLR", cosine)]


def _step(plan: _Plan, options: dict[str, Any]) -> _Made:
    size = max(1, plan.steps("step_epochs", options.pop("step_epochs", plan.epochs / 3)))
    return "StepLR", {"step_size": size, "gamma": 0.1} | _rest("step", "StepLR", options, {"step_size"}), []


def _multistep(plan: _Plan, options: dict[str, Any]) -> _Made:
    asked = options.pop("milestone_epochs", [share * plan.epochs for share in _MILESTONES])
    if isinstance(asked, (str, bytes)) or not isinstance(asked, Sequence):
        raise SettingsError(f"milestone_epochs={asked!r} is not possible.", "Give a list of epochs.")
    kwargs = {"milestones": sorted(plan.steps("milestone_epochs", one) for one in asked), "gamma": 0.1}
    return "MultiStepLR", kwargs | _rest("multistep", "MultiStepLR", options, {"milestones"}), []


def _plateau(plan: _Plan, options: dict[str, Any]) -> _Made:
    kwargs = {"mode": "min", "factor": 0.1, "patience": max(1, min(10, plan.epochs // 10))}
    return "ReduceLROnPlateau", kwargs | _rest("plateau", "ReduceLROnPlateau", options, set()), []


_MAKERS: Mapping[str, Callable[[_Plan, dict[str, Any]], _Made]] = {
    "onecycle": _onecycle,
    "cyclic": _cyclic,
    "cosine": _cosine,
    "step": _step,
    "multistep": _multistep,
    "plateau": _plateau,
}


def _rest(kind: str, name: str, options: dict[str, Any], ours: set[str]) -> dict[str, Any]:
    """What is left of the options, if the class takes it."""
    for option in options:
        if option in ours:
            raise SettingsError(f"{option}= follows from the epochs and the batch.", "Leave it out.")
        if option not in SCHEDULE_NAMES[name]:
            known = ", ".join(sorted(SCHEDULE_NAMES[name] - ours))
            raise SettingsError(f"{option}= is no option of {kind!r} ({name}).", f"Its options: {known}.")
    return options


def _check_name(name: object, kwargs: Any) -> None:
    simple = name.removeprefix(_MODULE) if isinstance(name, str) and name.startswith(_MODULE) else ""
    if simple not in SCHEDULE_NAMES:
        known = ", ".join(SCHEDULE_NAMES)
        raise SettingsError(
            f"The scheduler {name!r} is none that is built here.", f"Of torch.optim.lr_scheduler: {known}."
        )
    foreign = sorted(set(kwargs) - SCHEDULE_NAMES[simple])
    if foreign:
        raise SettingsError(f"{simple} has no argument {foreign[0]!r}.", f"It has {', '.join(SCHEDULE_NAMES[simple])}.")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
