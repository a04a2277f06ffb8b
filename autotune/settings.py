"""The knobs: one frozen record of all of them, and the full, fixed domain of each.

The domains never change between releases, machines or tasks: an Optuna study refuses a categorical
parameter whose choices differ from those stored. What is *worth trying* here is decided in ``space``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from autotune.errors import SettingsError

__all__ = ["DOMAINS", "CompileMode", "CompileScope", "Domain", "OptimizerImplementation", "Precision", "Settings"]

Precision = Literal["fp32", "tf32", "bf16-mixed", "fp16-mixed"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"]
CompileScope = Literal["model", "blocks"]
OptimizerImplementation = Literal["for-loop", "foreach", "fused"]
StartMethod = Literal["fork", "spawn", "forkserver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """All values a knob can ever take.

    Either ``choices`` (a categorical knob) or ``low``..``high`` (an integer knob); ``optional`` adds None.
    """

    choices: tuple[str | bool, ...] = ()
    low: int = 0
    high: int = 0
    log: bool = False
    optional: bool = False

    def holds(self, value: object) -> bool:
        """Whether ``value`` lies in the domain (``True`` is no integer here, ``1`` no bool)."""
        if value is None:
            return self.optional
        if self.choices:
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        return type(value) is int and self.low <= value <= self.high

    def __str__(self) -> str:
        values = ", ".join(map(repr, self.choices)) if self.choices else f"an int from {self.low} to {self.high}"
        return values + (" or None" if self.optional else "")


_BOOL = Domain(choices=(False, True))

DOMAINS: Mapping[str, Domain] = {
    "batch_size": Domain(low=1, high=2**24, log=True, optional=True),
    "gradient_accumulation_steps": Domain(low=1, high=2**20, log=True),
    "num_workers": Domain(low=0, high=1024),
    "prefetch_factor": Domain(low=1, high=1024, optional=True),
    "persistent_workers": _BOOL,
    "pin_memory": _BOOL,
    "multiprocessing_context": Domain(choices=get_args(StartMethod), optional=True),
    "precision": Domain(choices=get_args(Precision)),
    "channels_last": _BOOL,
    "compile_mode": Domain(choices=get_args(CompileMode), optional=True),
    "compile_scope": Domain(choices=get_args(CompileScope)),
    "optimizer_implementation": Domain(choices=get_args(OptimizerImplementation), optional=True),
    "cudnn_benchmark": _BOOL,
    "num_threads": Domain(low=1, high=1024, optional=True),
    "activation_checkpointing": _BOOL,
    "length_grouped": _BOOL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One complete set of knobs; what is measured, raced and shipped is always one of these.

    Raises:
        SettingsError: A value lies outside its domain, or two values cannot go together.
    """

    batch_size: int | None = 32
    """Samples per micro-batch (``DataLoader.batch_size``); None: the batches are the user's own (batch sampler)."""
    gradient_accumulation_steps: int = 1
    """Micro-batches per optimizer step."""
    num_workers: int = 0
    """Loader worker processes."""
    prefetch_factor: int | None = None
    """Batches each worker keeps ready; None exactly when there are no workers."""
    persistent_workers: bool = False
    """Keep workers between epochs."""
    pin_memory: bool = False
    """Load into page-locked memory (accelerators only)."""
    multiprocessing_context: StartMethod | None = None
    """Start method of the workers; None: the platform's default."""
    precision: Precision = "fp32"
    """fp32 and tf32 without autocast, the others with it; fp16 with a GradScaler. fp32 leaves the caller's flags."""
    channels_last: bool = False
    """Memory format of 4-D weights and inputs."""
    compile_mode: CompileMode | None = None
    """``torch.compile`` mode; None: eager."""
    compile_scope: CompileScope = "model"
    """Compile the whole model, or its repeated blocks one by one."""
    optimizer_implementation: OptimizerImplementation | None = None
    """Step implementation of the optimizer; None: as constructed by the user."""
    cudnn_benchmark: bool = False
    """``torch.backends.cudnn.benchmark``."""
    num_threads: int | None = None
    """Intra-op CPU threads of the training process; None: left as they are."""
    activation_checkpointing: bool = False
    """Recompute the activations of repeated blocks in the backward pass instead of keeping them."""
    length_grouped: bool = False
    """Batches of samples of similar length, in random order: less padding, another order of the samples."""

    def __post_init__(self) -> None:
        for name, domain in DOMAINS.items():
            value = getattr(self, name)
            if not domain.holds(value):
                raise SettingsError(f"{name}={value!r} is not possible.", f"Allowed: {domain}.")
        if self.num_workers == 0 and (self.prefetch_factor is not None or self.persistent_workers):
            raise SettingsError(
                "prefetch_factor and persistent_workers need num_workers > 0.",
                "Leave them out, or use Settings.replace(num_workers=0), which clears them.",
            )
        if self.num_workers > 0 and self.prefetch_factor is None:
            raise SettingsError(f"num_workers={self.num_workers} needs a prefetch_factor.", "torch's default is 2.")

    @property
    def effective_batch_size(self) -> int | None:
        """Samples per optimizer step, or None where the user's own batches are kept."""
        return None if self.batch_size is None else self.batch_size * self.gradient_accumulation_steps

    def replace(self, **changes: Any) -> Settings:
        """A copy with ``changes``, the loader's dependent knobs kept consistent.

        No workers clears prefetch, persistence and start method; going from none to some sets torch's default
        prefetch (2) and persistent workers unless ``changes`` says otherwise.

        Raises:
            SettingsError: A name is not a knob, or a value is not possible.
        """
        unknown = sorted(set(changes) - set(DOMAINS))
        if unknown:
            raise SettingsError(f"Unknown knob {unknown[0]!r}.", f"Knobs are: {', '.join(DOMAINS)}.")
        workers = changes.get("num_workers", self.num_workers)
        if workers == 0:
            changes = {**changes, "prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
        elif self.num_workers == 0:
            changes = {"prefetch_factor": 2, "persistent_workers": True, **changes}
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """All knobs as JSON scalars, in declaration order."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """The settings ``to_json`` wrote; knobs unknown to this release raise.

        Raises:
            SettingsError: Not a mapping of known knobs to possible values.
        """
        if not isinstance(data, Mapping):
            raise SettingsError(f"Settings must be a mapping of knobs, not {type(data).__name__}.", "")
        unknown = sorted(set(map(str, data)) - set(DOMAINS))
        if unknown:
            raise SettingsError(f"Unknown knob {unknown[0]!r}.", f"Knobs are: {', '.join(DOMAINS)}.")
        return cls(**data)

    def differences(self, other: Settings) -> dict[str, tuple[Any, Any]]:
        """The knobs in which ``other`` differs: name -> (own value, other's value)."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in DOMAINS}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
