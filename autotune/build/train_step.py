"""One training step: the code that trials time and that the user's loop runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from autotune.build.accumulation import AccumulationGroup, rescale_gradients, zero_if_none
from autotune.build.output import detached
from autotune.build.rate import TrainingRate
from autotune.errors import TaskError
from autotune.settings import Settings
from autotune.task import StepLoss
from autotune.task.batches import RowCounter, to_device
from autotune.task.layers import has_channels_last_weights
from autotune.task.optimizer_spec import refuse_closure

__all__ = ["TrainStep"]

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


class TrainStep:
    """Trains on one micro-batch per call and steps the optimizer when a group of them is complete.

    The gradient of a group equals that of one batch holding all its rows, also for uneven micro-batches and for a
    last, short group; each micro-loss counts by its rows, or by the weight that comes with it (a training step's
    own; the targets not ignored, for torch's cross-entropy): with the weight 0 for nothing, be it NaN. A group left
    open at an epoch's end goes on in the next epoch unless ``flush`` closes it; no sample is dropped either way.
    Gradients left over from before are cleared by the first call. A call that raises drops its open group.

    Args:
        model: As returned by ``prepare_model``; its mode (train, eval) is not touched.
        optimizer: Its parameters are those clipped, stepped and cleared.
        loss: ``(model, batch) -> StepLoss``, the batch being on ``device`` already.
        settings: gradient_accumulation_steps, precision, channels_last, pin_memory, compile_mode and batch_size.
        device: Where the model is.
        reduction: "mean": micro-losses are means and are weighted. "sum": they are sums and add up as they are.
        scheduler: Stepped once per optimizer step, not where a GradScaler skipped it (so no ReduceLROnPlateau); None:
            none.
        max_grad_norm: Clip the group's gradient to this norm; None: no clipping.
        warmup_steps: Optimizer steps over which the learning rate grows linearly from its value before scaling
            (1 / lr_factor of the current one) to the current one; 0: none. Composes with any scheduler.
        lr_factor: By how much the learning rate was scaled up; up to 1: no warm-up.
        promised_samples_per_s: Warn once (``SlowTrainingWarning``) when the rate stays below 0.9 of this.
        clock: Seconds, monotonic.

    Raises:
        TaskError: The optimizer needs a closure (LBFGS), or ``scheduler`` belongs to another optimizer.

    Source:
        Warm-up: Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2 (gradual warm-up).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        loss: Callable[[nn.Module, Any], StepLoss],
        settings: Settings,
        device: torch.device | str,
        reduction: Literal["mean", "sum"] = "mean",
        scheduler: Any = None,
        max_grad_norm: float | None = None,
        warmup_steps: int = 0,
        lr_factor: float = 1.0,
        promised_samples_per_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        _check(optimizer, scheduler)
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.settings = settings
        self.device = torch.device(device)
        self._loss = loss
        self._reduction = reduction
        self._max_grad_norm = max_grad_norm
        self._warmup_steps = warmup_steps if lr_factor > 1 else 0
        self._lr_factor = lr_factor
        self._channels_last = settings.channels_last and has_channels_last_weights(model)
        # CUDA graphs overwrite what the previous replay returned.
        self._cuda_graphs = settings.compile_mode == "reduce-overhead"
        self._scaler = torch.amp.GradScaler(self.device.type) if settings.precision == "fp16-mixed" else None
        self._group = AccumulationGroup(settings.gradient_accumulation_steps)
        self._rows = RowCounter(settings.batch_size)
        self._rate = TrainingRate(clock, promised_samples_per_s)
        self._optimizer_steps = 0
        self._gradients_are_ours = False
        self._did_update = False
        self._last_output: Any = None

    @property
    def last_output(self) -> Any:
        """The model's output of the last call, detached; None before the first."""
        return self._last_output

    @property
    def did_update(self) -> bool:
        """Whether the last call (or ``flush``) changed the weights."""
        return self._did_update

    @property
    def samples_per_s(self) -> float | None:
        """Rate over the last calls, 50 at most, waiting for data included; None before the second call."""
        return self._rate.samples_per_s

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps taken so far."""
        return self._optimizer_steps

    @property
    def sums(self) -> bool:
        """Whether losses are sums over the rows of a batch, not means."""
        return self._reduction == "sum"

    def __call__(self, batch: Any) -> Tensor:
        """Train on one micro-batch.

        Args:
            batch: As the loader gave it; moved to the device here.

        Returns:
            The micro-batch's loss as computed, detached, on the device. Nothing waits for the device, except
            that with fp16-mixed GradScaler's verdict is read once per optimizer step.

        Raises:
            TaskError: The training step returned a negative or non-finite weight.
        """
        self._did_update = False
        self._last_output = None  # frees the old output before the forward pass needs the memory
        if not self._gradients_are_ours:
            self.optimizer.zero_grad(set_to_none=True)
            self._gradients_are_ours = True
        try:
            step_loss, rows = self._forward_backward(batch)
            if self._group.full:
                self._close_group()
        except BaseException:
            self._drop_group()
            raise
        self._last_output = detached(step_loss.output)
        self._rate.record(rows)
        loss = step_loss.loss.detach()
        return loss.clone() if self._cuda_graphs else loss

    def flush(self) -> None:
        """Step on the open group, however short, so that the epoch ends with all its samples used.

        Call it at each epoch's end; nothing happens where no group is open. What follows until the next call
        (validation, a checkpoint) does not count into ``samples_per_s``.
        """
        self._did_update = False
        self._rate.pause()
        if not self._group.empty:
            self._close_group()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs beside the states of model, optimizer and scheduler.

        Returns:
            Steps taken (for the warm-up), the GradScaler's state, and an open group with its gradients (references,
            as in torch's own state dicts); loads with ``torch.load(weights_only=True)``.
        """
        group = None
        if not self._group.empty:
            gradients = [parameter.grad for parameter in self._parameters()]
            group = {**self._group.state_dict(), "gradients": gradients}
        scaler = self._scaler.state_dict() if self._scaler is not None else None
        return {"optimizer_steps": self._optimizer_steps, "scaler": scaler, "group": group}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            TaskError: The open group's gradients are those of another set of parameters.
        """
        self._drop_group()
        self._optimizer_steps = int(state["optimizer_steps"])
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        if state["group"] is not None:
            self._load_group(state["group"])

    def _forward_backward(self, batch: Any) -> tuple[StepLoss, int]:
        if self._cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        rows = self._rows(batch)
        batch = to_device(batch, self.device, non_blocking=self.settings.pin_memory, channels_last=self._channels_last)
        with self._autocast():
            step_loss = self._loss(self.model, batch)
        weight = _weight(step_loss, rows)
        loss = step_loss.loss
        if self._weighted:
            loss = self._group.weighted(loss, weight, self._usual_weight(step_loss))
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        if not self._weighted or isinstance(weight, Tensor) or weight:  # else, the mean of nothing: often NaN
            loss.backward()  # type: ignore[no-untyped-call]
        self._group.add(weight)
        return step_loss, rows

    @property
    def _weighted(self) -> bool:
        # A group of one is its own mean.
        return self._reduction == "mean" and self._group.size > 1

    def _usual_weight(self, step_loss: StepLoss) -> float | None:
        return self.settings.batch_size if step_loss.weight is None else None

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = _AUTOCAST.get(self.settings.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def _close_group(self) -> None:
        if self._weighted:
            zero_if_none(list(self._parameters()))
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        correction = self._group.correction() if self._weighted else None
        if correction is not None:
            rescale_gradients(self._parameters(), correction)
        if self._max_grad_norm is not None:
            clip_grad_norm_(list(self._parameters()), self._max_grad_norm)
        with self._warmed_up():
            self._did_update = self._step_optimizer()
        self._drop_group()
        if self._did_update:
            self._optimizer_steps += 1
            if self.scheduler is not None:
                self.scheduler.step()

    def _step_optimizer(self) -> bool:
        if self._scaler is None:
            self.optimizer.step()
            return True
        before = self._scaler.get_scale()
        self._scaler.step(self.optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= before > 0  # a skipped step lowers the scale

    @contextmanager
    def _warmed_up(self) -> Iterator[None]:
        """The learning rates of the warm-up during one optimizer step; the scheduler never sees them."""
        if self._optimizer_steps >= self._warmup_steps:
            yield
            return
        start = 1 / self._lr_factor
        share = start + (1 - start) * self._optimizer_steps / self._warmup_steps
        groups = self.optimizer.param_groups
        exact = [group["lr"] for group in groups]
        try:
            for group in groups:
                group["lr"] = group["lr"] * share
            yield
        finally:
            for group, lr in zip(groups, exact, strict=True):
                group["lr"] = lr

    def _parameters(self) -> Iterator[Tensor]:
        return (parameter for group in self.optimizer.param_groups for parameter in group["params"])

    def _drop_group(self) -> None:
        self._group.clear()
        self.optimizer.zero_grad(set_to_none=True)

    def _load_group(self, state: Mapping[str, Any]) -> None:
        parameters, gradients = list(self._parameters()), state["gradients"]
        if len(parameters) != len(gradients):
            raise TaskError(
                f"The saved group holds {len(gradients)} gradients, the optimizer {len(parameters)} parameters.",
                "Build model and optimizer as they were when the state was saved.",
            )
        self._group.load_state_dict(dict(state))
        self._gradients_are_ours = True
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)


def _check(optimizer: Optimizer, scheduler: Any) -> None:
    refuse_closure(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TaskError(
            "ReduceLROnPlateau moves once per epoch, by a figure of yours, not with each optimizer step.",
            "Leave it out here and call scheduler.step(figure) after each epoch.",
        )
    if scheduler is not None and getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise TaskError("The scheduler belongs to another optimizer.", "Build it with the optimizer given here.")


def _weight(step_loss: StepLoss, rows: int) -> float | Tensor:
    weight = step_loss.weight
    if weight is None:
        return float(rows)
    if isinstance(weight, Tensor) and weight.device.type != "cpu":
        return weight.detach().float()  # reading it would wait for the device
    number = float(weight)
    if not 0 <= number < math.inf:
        raise TaskError(f"The training step returned the weight {number}.", "Return a finite number >= 0.")
    return number
