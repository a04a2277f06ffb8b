"""Range-test probes: losses along an exponential sweep of the learning rate, from the weights as they were."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from autotune.learning_rate.range_test import diverged_at
from autotune.measurement import Measured, Probe
from autotune.trial.live import Live, LiveBuilder

__all__ = ["run_lr_range"]

_STEPS = 100
_FEWEST_STEPS = 30
_TIMED_STEPS = 3


def run_lr_range(builder: LiveBuilder, probe: Probe, *, clock: Callable[[], float]) -> Measured:
    """One optimizer step at each rate of ``probe.rates``, the sweep ending where the loss diverges.

    The first steps, at the lowest rate, say how many fit into ``probe.window_s``; there are 30 at least. Every
    parameter group keeps its share of the first one's rate.
    """
    began = clock()
    with builder.lent(probe.settings, probe.seed) as live:
        sweep = _swept(live, probe, clock)
    return Measured(
        kind=probe.kind,
        settings=probe.settings,
        chunks=(),
        warmup_s=clock() - began,
        steps=live.step.optimizer_steps,
        sweep=tuple((rate, loss if math.isfinite(loss) else None) for rate, loss in sweep),
    )


def _swept(live: Live, probe: Probe, clock: Callable[[], float]) -> list[tuple[float, float]]:
    low, high = probe.rates or (1e-7, 10.0)
    shares = _shares(live.step.optimizer)
    _step_at(live, low, shares)  # allocates the optimizer's state, starts the loader
    began = clock()
    for _ in range(_TIMED_STEPS):
        _step_at(live, low, shares)
    step_s = (clock() - began) / _TIMED_STEPS
    steps = max(_FEWEST_STEPS, min(probe.steps or _STEPS, int(probe.window_s / max(step_s, 1e-9))))
    found: list[tuple[float, float]] = []
    for index in range(steps):
        rate = low * (high / low) ** (index / (steps - 1))
        found.append((rate, _step_at(live, rate, shares)))
        if diverged_at([loss for _, loss in found]) < len(found) - 1 or not math.isfinite(found[-1][1]):
            break
    return found


def _shares(optimizer: torch.optim.Optimizer) -> list[float]:
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return [rate / rates[0] if rates[0] else 1.0 for rate in rates]


def _step_at(live: Live, rate: float, shares: list[float]) -> float:
    """Loss of one accumulation group, the optimizer then stepping at ``rate``."""
    for group, share in zip(live.step.optimizer.param_groups, shares, strict=True):
        group["lr"] = _like(group["lr"], rate * share)
    losses = [float(live.step(live.stream.take()[0])) for _ in range(live.settings.gradient_accumulation_steps)]
    return statistics.fmean(losses)


def _like(old: Any, rate: float) -> Any:
    """A rate that is a tensor stays one."""
    return torch.full_like(old, rate) if isinstance(old, torch.Tensor) else rate
