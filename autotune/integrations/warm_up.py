"""The plan's warm-up for an optimizer that another library steps."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

__all__ = ["WarmUp"]


class WarmUp:
    """Lowers the learning rates during the first optimizer steps, as ``TrainStep`` does; schedules never see it.

    Each step's rate rises linearly from that before tuning to the scaled one, and is put back once the step is done.

    Args:
        optimizer: Hooks are registered on it.
        steps: Optimizer steps of warm-up.
        factor: The rates are this times those before tuning.
        done: Steps that an earlier run has taken.
    """

    def __init__(self, optimizer: Optimizer, *, steps: int, factor: float, done: int = 0) -> None:
        self.done = done
        self._steps = steps if factor > 1 else 0
        self._start = 1 / factor
        self._exact: list[Any] | None = None
        self._hooks = [optimizer.register_step_pre_hook(self._lower), optimizer.register_step_post_hook(self._restore)]

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()

    def _lower(self, optimizer: Optimizer, *_: Any) -> None:
        if self.done >= self._steps:
            return
        share = self._start + (1 - self._start) * self.done / self._steps
        self._exact = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * share

    def _restore(self, optimizer: Optimizer, *_: Any) -> None:
        self.done += 1
        if self._exact is not None:
            for group, rate in zip(optimizer.param_groups, self._exact, strict=True):
                group["lr"] = rate
            self._exact = None
