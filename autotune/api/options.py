"""How to tune, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from autotune.errors import SettingsError
from autotune.hardware import Hardware
from autotune.learning_rate import LrScaling, WeightDecayScaling
from autotune.report.narrator import ProgressOption
from autotune.settings import Settings
from autotune.space import BatchRules, Space
from autotune.task import Task

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to tune; attributes mirror the arguments of ``autotune()``, but for ``earlier``."""

    effective_batch_size: int | Literal["keep"] | None = None
    max_batch_size: int | None = None
    max_effective_batch_size: int | Literal["noise-scale"] | None = None
    memory_margin: float = 0.05
    lr_scaling: LrScaling | None = "linear"
    weight_decay_scaling: WeightDecayScaling | None = None
    space: Space | None = None
    time_budget_s: float = 120.0
    storage: Any = None
    study_name: str | None = None
    seed: int = 0
    isolate: bool = True
    cache: bool = False
    """Off unless asked for: who calls ``tune`` wants a tuning; ``autotune()`` asks for it."""
    earlier: Settings | None = None
    """What another run found to be fastest, tried first as far as it is allowed; None: what the study knows."""
    progress: ProgressOption = None
    hardware: Hardware | None = None

    def __post_init__(self) -> None:
        _check_number("time_budget_s", self.time_budget_s, above=0.0, below=float("inf"))
        _check_number(
            "memory_margin",
            self.memory_margin,
            above=-1e-9,
            below=1.0,
            remedy="Give a number from 0 to below 1, such as 0.05.",
        )
        if self.lr_scaling not in ("linear", "sqrt", "auto", None):
            raise SettingsError(
                f"lr_scaling={self.lr_scaling!r} is not possible.", 'Use "linear", "sqrt", "auto" or None.'
            )
        if self.weight_decay_scaling not in ("timescale", None):
            raise SettingsError(
                f"weight_decay_scaling={self.weight_decay_scaling!r} is not possible.", 'Use "timescale" or None.'
            )
        if self.bounded_by_noise and self.effective_batch_size is not None:
            raise SettingsError(
                f"effective_batch_size={self.effective_batch_size!r} leaves the noise scale nothing to bound.",
                'Leave one of the two out: effective_batch_size, or max_effective_batch_size="noise-scale".',
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral) or not 0 <= self.seed < 2**32:
            raise SettingsError(f"seed={self.seed!r} is not possible.", "Give an int from 0 to 2**32 - 1.")
        object.__setattr__(self, "seed", int(self.seed))
        for name in ("effective_batch_size", "max_batch_size", "max_effective_batch_size"):
            object.__setattr__(self, name, _plain_int(getattr(self, name)))
        _check_type("space", self.space, Space, "Use autotune.Space(num_workers=[0, 2]).")
        _check_type("hardware", self.hardware, Hardware, "Leave it out, or pass an autotune.hardware.Hardware.")
        _check_type("study_name", self.study_name, str, "Give a text, or leave it out.")
        _check_type("earlier", self.earlier, Settings, "Use autotune.Settings(...), or leave it out.")
        for name in ("isolate", "cache"):
            if not isinstance(getattr(self, name), bool):
                raise SettingsError(f"{name}={getattr(self, name)!r} is not possible.", "Use True or False.")
        if not (self.progress is None or self.progress is False or callable(self.progress)):
            raise SettingsError(f"progress={self.progress!r} is not possible.", "Use None, False or a callable.")

    @property
    def bounded_by_noise(self) -> bool:
        """Whether the noise scale bounds the effective batch."""
        return self.max_effective_batch_size == "noise-scale"

    def batch_rules(self, task: Task) -> BatchRules:
        """The caller's bounds on batch sizes."""
        most = self.max_effective_batch_size
        return BatchRules(
            base_batch_size=task.base_batch_size,
            effective_batch_size=self.effective_batch_size,
            max_batch_size=self.max_batch_size,
            max_effective_batch_size=None if most == "noise-scale" else most,
            earlier_batch_size=self.earlier.batch_size if self.earlier is not None else None,
        )


def _plain_int(value: Any) -> Any:
    """numpy's integers become int; anything else is left for the rules to judge."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def _check_type(name: str, value: object, wanted: type, remedy: str) -> None:
    if value is not None and not isinstance(value, wanted):
        raise SettingsError(f"{name}={value!r} is not possible.", remedy)


def _check_number(
    name: str, value: object, *, above: float, below: float, remedy: str = "Give a number above 0."
) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not above < float(value) < below:
        raise SettingsError(f"{name}={value!r} is not possible.", remedy)
