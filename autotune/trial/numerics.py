"""Numerics probes: does a setting compute the same loss as fp32 eager on the same batch and weights?

Dropout is off (compiled code draws other random numbers from the same seed), normalisation layers work as in
training. Reduced precision is followed for some real steps as well.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autotune.build.train_step import TrainStep
from autotune.measurement import Measured, Probe
from autotune.settings import Settings
from autotune.task.reduction import without_dropout

__all__ = [
    "DRIFT_STEPS",
    "NumericsResult",
    "finite_parameters",
    "follow",
    "measured_numerics",
    "reference_of",
    "steady_dropout",
]

DRIFT_STEPS = 30
_LAST = 10
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_NEEDS_TRAIN_MODE = (nn.RNNBase,)  # cuDNN refuses their backward pass in eval mode


@dataclass(frozen=True, slots=True)
class NumericsResult:
    """Losses of one setting: on the first batch from the initial weights, then of each real step."""

    first: float
    stays_finite: bool
    followed: tuple[float, ...]


@contextlib.contextmanager
def steady_dropout(model: nn.Module) -> Iterator[None]:
    """Eval mode for all but normalisation (which must see the batch) and recurrent layers (made dropout-free)."""
    steady = (*_NORMS, *_NEEDS_TRAIN_MODE)
    training = [module for module in model.modules() if isinstance(module, steady) and module.training]
    with without_dropout(model):
        model.eval()
        for module in training:
            module.training = True
        yield


def reference_of(settings: Settings) -> Settings:
    """What the numbers are compared with: fp32 eager; of compiled settings, the same eager, compared in its turn."""
    if settings.compile_mode is not None:
        return settings.replace(compile_mode=None, compile_scope="model")
    return settings.replace(
        precision="fp32",
        channels_last=False,
        compile_mode=None,
        optimizer_implementation=None,
        activation_checkpointing=False,
    )


def finite_parameters(model: nn.Module) -> bool:
    """Whether every parameter is finite (after a step: so were the gradients)."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def follow(
    step: TrainStep, batches: Sequence[Any], *, steps: int, until: float, clock: Callable[[], float]
) -> tuple[float, ...]:
    """Losses of up to ``steps`` real steps over ``batches`` in turn, ended early at clock time ``until``."""
    losses: list[torch.Tensor] = []
    while len(losses) < steps and clock() < until:
        losses.append(step(batches[len(losses) % len(batches)]))
    return tuple(float(loss) for loss in losses)


def measured_numerics(
    probe: Probe, setting: NumericsResult, reference: NumericsResult, *, began: float, clock: Callable[[], float]
) -> Measured:
    """The comparison as an outcome; a loss or gradient that is not finite gives an infinite error."""
    finite = setting.stays_finite and math.isfinite(setting.first)
    error = abs(setting.first - reference.first) / max(abs(reference.first), 1e-12) if finite else math.inf
    steps = min(len(setting.followed), len(reference.followed))
    return Measured(
        kind="numerics",
        settings=probe.settings,
        chunks=(),
        steps=steps,
        first_loss=setting.first if finite else None,
        loss_error=error if math.isfinite(error) else None,
        loss_drift=_drift(setting.followed[:steps], reference.followed[:steps]),
        drift_steps=steps,
        warmup_s=clock() - began,
    )


def _drift(setting: Sequence[float], reference: Sequence[float]) -> float | None:
    if not setting:
        return None
    mean = sum(setting[-_LAST:]) / len(setting[-_LAST:])
    expected = sum(reference[-_LAST:]) / len(reference[-_LAST:])
    return (mean - expected) / max(abs(expected), 1e-12)
