"""Two short trainings side by side: plain PyTorch with its defaults, and the tuned configuration.

Both start from the same weights and are timed whole, worker start included. Neither may run longer than a fixed
number of seconds; one that was stopped says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from autotune.errors import TaskError
from autotune.task import Task

if TYPE_CHECKING:
    from autotune.config import TunedConfig

__all__ = ["Comparison", "Training", "compare", "train_tuned", "train_with_defaults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What one short training did."""

    samples: int
    seconds: float
    """Wall time from building the loader to the last step."""
    steps: int
    """Batches trained on."""
    first_loss: float
    """Mean loss of the first tenth of the batches."""
    last_loss: float
    """Mean loss of the last tenth of the batches."""
    cut: bool
    """Stopped at its time limit before the last epoch was through."""

    @property
    def samples_per_s(self) -> float:
        """The real rate, worker start and epoch ends included."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON scalars, the rate among them."""
        return {"samples_per_s": self.samples_per_s, **asdict(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The tuned configuration and the two trainings."""

    config: TunedConfig
    defaults: Training
    tuned: Training
    epochs: int
    limit_s: float
    """Seconds after which each training was stopped."""

    def to_json(self) -> dict[str, Any]:
        """JSON scalars: the race, both trainings, both settings."""
        evidence = self.config.evidence
        return {
            "kept_baseline": evidence.kept_baseline,
            "reason": evidence.reason,
            "speedup": None if evidence.speedup is None else evidence.speedup.to_json(),
            "baseline_settings": self.config.baseline.to_json(),
            "settings": self.config.settings.to_json(),
            "epochs": self.epochs,
            "training_limit_s": self.limit_s,
            "training": {"defaults": self.defaults.to_json(), "tuned": self.tuned.to_json()},
            "warnings": list(evidence.warnings),
        }

    def __str__(self) -> str:
        return "\n".join([*self._race_lines(), "", *self._training_lines()])

    def _race_lines(self) -> list[str]:
        evidence = self.config.evidence
        reason = evidence.reason.removeprefix("baseline kept: ").rstrip(".")
        verdict = f"{'Baseline kept' if evidence.kept_baseline else 'Tuned settings chosen'}: {reason}."
        if evidence.speedup is None:
            return [verdict]
        speedup = evidence.speedup
        race = (
            f"Race: {speedup.median:.2f} times the defaults' samples/s "
            f"(95 % bounds {speedup.low:.2f} to {speedup.high:.2f}, {speedup.rounds} interleaved rounds)."
        )
        changes = self.config.baseline.differences(self.config.settings)
        chosen = ", ".join(f"{name}={value}" for name, (_, value) in changes.items())
        return [race, verdict, *([f"Chosen: {chosen}."] if chosen else [])]

    def _training_lines(self) -> list[str]:
        rows = [
            ("defaults", self.defaults),
            ("the same" if self.config.evidence.kept_baseline else "tuned", self.tuned),
        ]
        lines = [
            f"Then trained {self.epochs} short epochs with each, same initial weights, worker start included:",
            f"{'':10}{'samples/s':>10}{'samples':>9}{'batches':>9}{'seconds':>9}   loss, first to last tenth",
        ]
        for name, training in rows:
            lines.append(
                f"{name:<10}{training.samples_per_s:>10.0f}{training.samples:>9}{training.steps:>9}"
                f"{training.seconds:>9.1f}   {training.first_loss:.2f} -> {training.last_loss:.2f}"
            )
        for name, training in rows:
            if training.cut:
                lines.append(f"The training with {name} was stopped at its limit of {self.limit_s:.0f} s.")
        lines.append("Real pixels, constructed labels: the speed is that of real work, the question is made up.")
        return lines


def compare(
    task: Task,
    config: TunedConfig,
    *,
    epochs: int = 2,
    limit_s: float = 30.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Train shortly with plain PyTorch defaults, then with the tuned configuration.

    Args:
        task: Map-style data, a model factory, a ``loss_fn`` and an optimizer factory, as ``demo_task`` makes it.
        config: What tuning ``task`` returned.
        epochs: Passes over the data.
        limit_s: Each training stops after so many seconds, wherever it is.
        seed: Of the weights and of the order of the data.
        say: Gets a line before each training.
        clock: Seconds.

    Raises:
        TaskError: The task has no loss_fn or no optimizer factory.
    """
    say(f"Training with plain PyTorch defaults ({epochs} epochs, at most {limit_s:.0f} s).")
    defaults = train_with_defaults(task, epochs=epochs, limit_s=limit_s, seed=seed, clock=clock)
    which = "the same settings once more" if config.evidence.kept_baseline else "the tuned configuration"
    say(f"Training with {which} ({epochs} epochs, at most {limit_s:.0f} s).")
    tuned = train_tuned(task, config, epochs=epochs, limit_s=limit_s, seed=seed, clock=clock)
    return Comparison(config=config, defaults=defaults, tuned=tuned, epochs=epochs, limit_s=limit_s)


def train_with_defaults(
    task: Task, *, epochs: int, limit_s: float, seed: int, clock: Callable[[], float] = time.perf_counter
) -> Training:
    """The loop of PyTorch's tutorials: ``DataLoader(dataset, batch_size, shuffle=True)``, fp32, eager."""
    begun = clock()
    torch.manual_seed(seed)
    device = _device(task)
    model = task.build_model().to(device)
    loader = DataLoader(task.data.dataset, batch_size=task.base_batch_size or 32, shuffle=True)
    loss_fn, factory = task.loss_fn, task.optimizer.factory
    if loss_fn is None or factory is None:
        raise TaskError("The comparison trains with the task's own loss_fn and optimizer.", "Pass both to Task.")
    optimizer = factory(model.parameters())

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = (tensor.to(device) for tensor in batch)
        loss: Tensor = loss_fn(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return _train(loader, step, epochs=epochs, limit_s=limit_s, begun=begun, clock=clock)


def train_tuned(
    task: Task,
    config: TunedConfig,
    *,
    epochs: int,
    limit_s: float,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Training:
    """The same training through the objects the tuned configuration builds; flags are put back afterwards."""
    with config.switches():
        begun = clock()
        torch.manual_seed(seed)
        model = config.prepare(task.build_model())
        loader = config.dataloader()
        step = config.train_step(model, config.optimizer(model))
        return _train(loader, step, epochs=epochs, limit_s=limit_s, begun=begun, clock=clock, end_epoch=step.flush)


def _train(
    loader: Iterable[Any],
    step: Callable[[Any], Tensor],
    *,
    epochs: int,
    limit_s: float,
    begun: float,
    clock: Callable[[], float],
    end_epoch: Callable[[], object] = lambda: None,
) -> Training:
    losses: list[Tensor] = []
    samples = 0
    cut = False
    for _ in range(epochs):
        for batch in loader:
            cut = bool(losses) and clock() - begun >= limit_s
            if cut:
                break
            losses.append(step(batch))
            samples += len(batch[1])
        end_epoch()
        if cut:
            break
    values = torch.stack(losses).tolist()  # waits for the accelerator, if there is one, before the clock is read
    seconds = clock() - begun
    tenth = max(1, len(values) // 10)
    return Training(
        samples=samples,
        seconds=seconds,
        steps=len(values),
        first_loss=statistics.fmean(values[:tenth]),
        last_loss=statistics.fmean(values[-tenth:]),
        cut=cut,
    )


def _device(task: Task) -> torch.device:
    if task.device is not None:
        return torch.device(task.device)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")
