"""The live objects of one setting: model, optimizer, loader, train step and the stream of batches."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Sampler

from autotune.build.loader import build_loader
from autotune.build.model import prepare_model
from autotune.build.optimizer import build_optimizer
from autotune.build.train_step import TrainStep
from autotune.settings import Settings
from autotune.task import Facts, LoaderParts, ResolvedLoss, Task
from autotune.task.lengths import sample_lengths
from autotune.task.rows import RowCounter
from autotune.task.worker_state import shared_states
from autotune.trial.compiled import CompiledState
from autotune.trial.indices import ContinuedSampler
from autotune.trial.models import ModelPool
from autotune.trial.stream import BatchStream

__all__ = ["Live", "LiveBuilder"]


@dataclass(slots=True, kw_only=True)
class Live:
    """What trains under one setting."""

    settings: Settings
    model: nn.Module
    loader: DataLoader[Any]
    step: TrainStep
    stream: BatchStream
    rows: RowCounter
    warm: bool = False
    """In its steady state: no stock of batches flatters it."""
    starved: bool = False
    """It was seen to wait for its loader."""
    long_steps: bool = False
    """Its steps were seen to be long enough to say something one by one."""

    @property
    def started(self) -> bool:
        """Whether it ran before."""
        return self.stream.batches > 0

    def close(self) -> None:
        """Ends the loader's workers now, not when the garbage collector finds them."""
        _end_workers(self.loader, self.stream)


class LiveBuilder:
    """Builds ``Live`` objects exactly as the tuned config builds them for the user.

    Args:
        task: The task as it arrived in this process.
        data: Its data, resolved.
        facts: What is known of it.
        loss: Its loss.
        models: Where models come from.
        device: Where the steps run.
        fresh_data: Makes the data anew, as it arrived; None: there is only this.
        lengths: Says how long each sample is.
    """

    def __init__(
        self,
        task: Task,
        data: LoaderParts,
        facts: Facts,
        loss: ResolvedLoss,
        models: ModelPool,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
        lengths: Callable[[LoaderParts], torch.Tensor] = sample_lengths,
        fresh_data: Callable[[], LoaderParts] | None = None,
    ) -> None:
        self._task, self._data, self._facts, self._loss = task, data, facts, loss
        self._models, self._device, self._clock = models, device, clock
        self._lengths = lengths
        self._fresh_data, self._unread = fresh_data, None if fresh_data else data
        self._samples_read = 0
        self._compiled = CompiledState()

    def loader(self, settings: Settings, seed: int) -> DataLoader[Any]:
        """The loader of ``settings``, continuing where the last trial's reading ended."""
        return build_loader(
            self._as_it_came() if settings.num_workers else self._data,
            settings,
            has_batch_norm=self._facts.has_batch_norm,
            seed=seed,
            sampler=self._sampler(seed),
            lengths=self._lengths,
        )

    def _as_it_came(self) -> LoaderParts:
        """The data for workers: where reading it here opened files or started threads, a copy that holds none."""
        if not any(state.kind in ("handle", "thread") for state in shared_states(dataset=self._data.dataset)):
            return self._data
        if self._unread is None and self._fresh_data is not None:
            self._unread = self._fresh_data()
        return self._unread or self._data

    def build(self, settings: Settings, seed: int, *, observer: Callable[[nn.Module], Optimizer] | None = None) -> Live:
        """All live objects of ``settings``, weights pristine, nothing started yet.

        Args:
            settings: What to build.
            seed: Seeds the order of the samples and random layers.
            observer: Makes an optimizer that looks at unclipped gradients, in place of the task's.
        """
        torch.manual_seed(seed)
        model, step = self.trainer(settings, observer=observer)
        try:
            loader = self.loader(settings, seed)
        except BaseException:
            self._models.failed(model, settings)
            raise
        stream = BatchStream(loader, on_epoch_end=step.flush, clock=self._clock)
        return Live(
            settings=settings,
            model=model,
            loader=loader,
            step=step,
            stream=stream,
            rows=RowCounter(settings.batch_size),
        )

    def trainer(
        self, settings: Settings, *, observer: Callable[[nn.Module], Optimizer] | None = None
    ) -> tuple[nn.Module, TrainStep]:
        """Model and train step without a loader."""
        if settings.compile_mode is not None:
            self._compiled.enter(settings)
        model = self._models.take(settings)
        try:
            return model, self._train_step(prepare_model(model, settings, self._device), settings, observer)
        except BaseException:
            self._models.failed(model, settings)
            raise

    def _train_step(
        self, model: nn.Module, settings: Settings, observer: Callable[[nn.Module], Optimizer] | None
    ) -> TrainStep:
        return TrainStep(
            model,
            build_optimizer(self._task.optimizer, model, settings) if observer is None else observer(model),
            loss=self._loss,
            settings=settings,
            device=self._device,
            reduction=self._loss.reduction,
            max_grad_norm=self._task.max_grad_norm if observer is None else None,
        )

    @contextmanager
    def lent(
        self, settings: Settings, seed: int, *, observer: Callable[[nn.Module], Optimizer] | None = None
    ) -> Iterator[Live]:
        """Live objects for one use: their model is kept for the next, unless the use failed."""
        live = self.build(settings, seed, observer=observer)
        try:
            yield live
        except BaseException:
            self.discard(live)
            raise
        self.give_back(live)

    def give_back(self, live: Live) -> None:
        """Closes ``live`` after use and keeps its model for the next."""
        self.end_loader(live.loader, live.stream, live.settings)
        self._models.give_back(live.model, live.settings)

    def discard(self, live: Live) -> None:
        """Closes ``live`` after a failure; its model is not used again."""
        self.end_loader(live.loader, live.stream, live.settings)
        self._models.failed(live.model, live.settings)

    def end_loader(self, loader: DataLoader[Any], stream: BatchStream, settings: Settings) -> None:
        """Ends the workers and notes how far the data was read."""
        _end_workers(loader, stream)
        ahead = settings.num_workers * (settings.prefetch_factor or 0)
        self._samples_read += (stream.batches + ahead) * (settings.batch_size or 1)

    def _sampler(self, seed: int) -> Sampler[int] | None:
        data = self._data
        if data.iterable or data.batches_kept or data.sampler is not None or not data.samples:
            return None
        return ContinuedSampler(data.samples, offset=self._samples_read, shuffle=bool(data.shuffle), seed=0)


def _end_workers(loader: DataLoader[Any], stream: BatchStream) -> None:
    iterator = getattr(loader, "_iterator", None)  # torch keeps persistent workers' iterator here
    stream.close()
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
    loader._iterator = None


def free_memory(device: torch.device) -> None:
    """Gives back what finished trials held."""
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.memory.empty_cache()
