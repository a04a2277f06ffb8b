"""Noise-scale probes: squared norms of the gradients of single batches and of groups of them, at fixed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.errors import TaskError
from autotune.measurement import Measured, Probe, mean_interval
from autotune.trial.live import Live, LiveBuilder

__all__ = ["run_noise_scale"]

_GROUPS = 48
_FEWEST_GROUPS = 4
_ENOUGH_GROUPS = 12
_ENOUGH = 0.1  # half of the 95 % interval of |G|^2, the part that noise hides, over its mean
_MOST_SKIPPED = 100  # batches of another size in a row


def run_noise_scale(builder: LiveBuilder, probe: Probe, *, clock: Callable[[], float]) -> Measured:
    """Gradients of up to ``probe.steps`` groups of batches: 4 at least, until ``window_s`` is over or 12 are enough.

    A group is as many batches as ``gradient_accumulation_steps``; the optimizer only looks, so the weights stay.
    Batches of another size than the first (an epoch's last) are passed over.
    """
    began = clock()
    per_group = probe.settings.gradient_accumulation_steps
    single = probe.settings.replace(gradient_accumulation_steps=1)
    with builder.lent(single, probe.seed, observer=_Observer.over) as live:
        norms, rows = _measured_norms(live, probe, per_group, clock)
    return Measured(
        kind=probe.kind,
        settings=probe.settings,
        chunks=(),
        warmup_s=clock() - began,
        steps=len(norms) * per_group,
        largest_batch_rows=rows,
        square_norms=tuple(norms),
    )


class _Observer(Optimizer):
    """Adds up gradients and their squared norms, and changes no weight."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.clear()

    @classmethod
    def over(cls, model: nn.Module) -> _Observer:
        return cls([parameter for parameter in model.parameters() if parameter.requires_grad])

    def clear(self) -> None:
        self._sum: list[Tensor | None] = [None] * sum(len(group["params"]) for group in self.param_groups)
        self.square_norms: list[float] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        total = 0.0
        for index, parameter in enumerate(parameters):
            if parameter.grad is None:
                continue
            gradient = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            total += _square(gradient)
            before = self._sum[index]
            self._sum[index] = gradient.clone() if before is None else before.add_(gradient)
        self.square_norms.append(total)

    def square_norm_of_mean(self) -> float:
        """Of the mean of all gradients since ``clear``."""
        return sum(_square(one) for one in self._sum if one is not None) / len(self.square_norms) ** 2


def _square(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))) ** 2


def _measured_norms(
    live: Live, probe: Probe, per_group: int, clock: Callable[[], float]
) -> tuple[list[tuple[float, float]], int]:
    observer, began = live.step.optimizer, clock()
    assert isinstance(observer, _Observer)
    found: list[tuple[float, float]] = []
    rows = 0
    while len(found) < (probe.steps or _GROUPS):
        observer.clear()
        for _ in range(per_group):
            batch, rows = _next_of_size(live, rows)
            live.step(batch)
        scale = float(rows) ** 2 if live.step.sums else 1.0  # of a sum over the rows, the mean's gradient
        small = sum(observer.square_norms) / per_group / scale
        found.append((small, observer.square_norm_of_mean() / scale))
        if len(found) >= _FEWEST_GROUPS and (clock() - began > probe.window_s or _enough(found, per_group)):
            break
    return found, rows


def _enough(found: list[tuple[float, float]], per_group: int) -> bool:
    squares = [(per_group * large - small) / (per_group - 1) for small, large in found]
    interval = mean_interval(squares) if len(found) >= _ENOUGH_GROUPS else None
    return interval is not None and interval.high - interval.low < _ENOUGH * (interval.high + interval.low)


def _next_of_size(live: Live, rows: int) -> tuple[Any, int]:
    for _ in range(_MOST_SKIPPED):
        batch, _ = live.stream.take()
        counted = live.rows(batch)
        if not rows or counted == rows:
            return batch, counted
    raise TaskError(
        f"Of {_MOST_SKIPPED} batches none had {rows} rows like the first: gradients of batches of one size are needed.",
        "Tune with a fixed batch size.",
    )
