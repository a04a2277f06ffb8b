"""One accumulation group: how micro-batches of unequal weight add up to the gradient of one large batch.

A large batch's mean loss is ``sum(w_i * loss_i) / sum(w_i)`` over its micro-batches, w_i being their rows (or
whatever their means were taken over). ``sum(w_i)`` is known only when the group closes, so each micro-loss is
weighted ``w_i / W`` with a nominal W first, and the gradients are multiplied by ``W / sum(w_i)`` at the end: exact for
any group that is short or uneven, without looking ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["AccumulationGroup", "rescale_gradients", "zero_if_none"]

Weight = float | Tensor


class AccumulationGroup:
    """The weights of the micro-batches taken since the last optimizer step.

    Args:
        size: Micro-batches per full group.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.micro_batches = 0
        self._nominal: Weight = 0.0
        self._sum: Weight = 0.0

    @property
    def full(self) -> bool:
        return self.micro_batches >= self.size

    @property
    def empty(self) -> bool:
        return self.micro_batches == 0

    def share(self, weight: Weight, usual_weight: float | None) -> Weight:
        """What the next micro-loss is to be multiplied by; ``add`` then counts it.

        Args:
            weight: Of this micro-batch, its rows or what its loss was averaged over, >= 0.
            usual_weight: Of a full micro-batch, where it is known; else the group's first weight stands for it.
        """
        if self.empty:
            self._nominal = self.size * (usual_weight or _positive(weight))
        return weight / self._nominal

    def weighted(self, loss: Tensor, weight: Weight, usual_weight: float | None) -> Tensor:
        """The next micro-loss times its share; 0 where its weight is 0, even if the loss is NaN.

        A weight on an accelerator is not read, so the backward pass runs in any case: with a gradient of 0 into the
        loss, which only a loss that itself divides by 0 or takes the root of 0 turns into NaN again.
        """
        share = self.share(weight, usual_weight)
        if isinstance(share, Tensor):
            return torch.where(share > 0, loss * share, torch.zeros_like(loss))
        return loss * share

    def add(self, weight: Weight) -> None:
        """Count a micro-batch whose backward pass is done."""
        self.micro_batches += 1
        self._sum = self._sum + weight

    def correction(self) -> Weight | None:
        """Factor for the gradients at the group's end; None where there is nothing to correct or to learn from."""
        if isinstance(self._sum, Tensor):
            return torch.where(self._sum > 0, self._nominal / self._sum, torch.zeros_like(self._sum))
        if self._sum == 0 or self._sum == self._nominal:
            return None
        return self._nominal / self._sum

    def clear(self) -> None:
        self.micro_batches = 0
        self._nominal = self._sum = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"micro_batches": self.micro_batches, "nominal": self._nominal, "sum": self._sum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.micro_batches = int(state["micro_batches"])
        self._nominal, self._sum = state["nominal"], state["sum"]


def _positive(weight: Weight) -> Weight:
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, weight, torch.ones_like(weight))
    return weight or 1.0


@torch.no_grad()
def rescale_gradients(parameters: Iterable[Tensor], factor: Weight) -> None:
    """Multiply all gradients in place, dense and sparse, on any number of devices, without reading ``factor``."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            values = gradient._values() if gradient.is_sparse else gradient
            by_device.setdefault(values.device, []).append(values)
    for device, gradients in by_device.items():
        local = factor.to(device, non_blocking=True) if isinstance(factor, Tensor) else factor
        torch._foreach_mul_(gradients, local)


def zero_if_none(parameters: list[Tensor]) -> None:
    """The gradient 0 everywhere where no parameter has one: that of a group all of whose weights are 0."""
    if all(parameter.grad is None for parameter in parameters):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
