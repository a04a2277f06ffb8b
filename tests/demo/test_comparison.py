"""The two short trainings: same start, same data, bounded, and reported as they were."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.config import Evidence, Speedup
from autotune.demo.comparison import Comparison, Training, compare, train_tuned, train_with_defaults
from autotune.errors import TaskError
from autotune.settings import Settings


def _model() -> nn.Module:
    return nn.Linear(4, 2)


def _task(samples: int = 100, **changes: object) -> SimpleNamespace:
    torch.manual_seed(1)
    inputs = torch.randn(samples, 4)
    data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
    task = {
        "data": SimpleNamespace(dataset=data),
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizer": SimpleNamespace(factory=lambda params: torch.optim.SGD(params, lr=0.5)),
        "base_batch_size": 10,
        "device": "cpu",
        "build_model": _model,
    }
    return SimpleNamespace(**{**task, **changes})


class _Config:
    """A tuned configuration that builds plain objects and notes what was asked of it."""

    baseline = Settings(batch_size=10)
    settings = Settings(batch_size=20)

    def __init__(self, task: SimpleNamespace, *, kept: bool = False, speedup: Speedup | None = None) -> None:
        self.task = task
        self.calls: list[str] = []
        self.first_weights: torch.Tensor | None = None
        self.evidence = Evidence(kept_baseline=kept, reason="waits for data.", speedup=speedup, warnings=("noisy",))

    @contextlib.contextmanager
    def switches(self) -> Iterator[None]:
        self.calls.append("switched")
        yield
        self.calls.append("restored")

    def prepare(self, model: nn.Module) -> nn.Module:
        self.first_weights = model.weight.detach().clone()
        return model

    def dataloader(self) -> DataLoader:
        return DataLoader(self.task.data.dataset, batch_size=20, shuffle=True)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1.0)

    def train_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
        calls = self.calls

        class Step:
            def __call__(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
                loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            def flush(self) -> None:
                calls.append("flush")

        return Step()


class _Clock:
    """A clock that goes on by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_defaults_train_whole_epochs_and_learn():
    """Two passes over all samples; the last losses are below the first."""
    training = train_with_defaults(_task(), epochs=2, limit_s=1e9, seed=0)
    assert (training.samples, training.steps, training.cut) == (200, 20, False)
    assert training.last_loss < training.first_loss


def test_a_slow_training_is_stopped_at_its_limit_and_says_so():
    """The clock decides when the last batch was; the rate counts only what was trained on."""
    training = train_with_defaults(_task(), epochs=2, limit_s=5.0, seed=0, clock=_Clock())
    assert training.cut
    assert 0 < training.samples < 100
    assert training.samples == training.steps * 10


def test_a_training_that_ends_in_time_is_not_called_stopped():
    """Reaching the limit on the very last batch cuts nothing."""
    training = train_with_defaults(_task(10), epochs=1, limit_s=0.0, seed=0, clock=_Clock())
    assert (training.steps, training.cut) == (1, False)


def test_the_rate_is_samples_over_all_seconds():
    """From before the model is built to after the last loss was read."""
    training = train_with_defaults(_task(20), epochs=1, limit_s=1e9, seed=0, clock=_Clock())
    assert training.samples_per_s == pytest.approx(20 / training.seconds)
    assert training.seconds == 2.0  # read at the start, before the second batch, at the end


def test_tuned_training_uses_the_configs_objects_within_its_switches():
    """Switches are put back after the training, and each epoch closes its last group."""
    task = _task()
    config = _Config(task)
    training = train_tuned(task, config, epochs=2, limit_s=1e9, seed=0)
    assert config.calls == ["switched", "flush", "flush", "restored"]
    assert (training.samples, training.steps) == (200, 10)


def test_both_trainings_start_from_the_same_weights():
    """The same seed draws the same initial weights for both."""
    weights: list[torch.Tensor] = []

    def build() -> nn.Module:
        model = _model()
        weights.append(model.weight.detach().clone())
        return model

    task = _task(build_model=build)
    compare(task, _Config(task), seed=3)
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("missing", ["loss_fn", "optimizer"])
def test_a_task_without_loss_or_optimizer_is_refused(missing):
    """A guess must not train."""
    task = _task(**{missing: None if missing == "loss_fn" else SimpleNamespace(factory=None)})
    with pytest.raises(TaskError, match=missing):
        train_with_defaults(task, epochs=1, limit_s=1.0, seed=0)


def _training(rate: float, cut: bool = False) -> Training:
    return Training(samples=1000, seconds=1000 / rate, steps=40, first_loss=2.25, last_loss=0.5, cut=cut)


def _comparison(*, kept: bool, speedup: Speedup | None, cut: bool = False) -> Comparison:
    config = _Config(_task(), kept=kept, speedup=speedup)
    return Comparison(config=config, defaults=_training(400, cut), tuned=_training(800), epochs=2, limit_s=30.0)


def test_the_text_holds_race_verdict_rates_losses_and_the_honest_note():
    """All that the demo promises to say is there."""
    text = str(_comparison(kept=False, speedup=Speedup(median=1.9, low=1.71, high=2.04, rounds=6)))
    for part in (
        "1.90 times",
        "1.71",
        "2.04",
        "6 interleaved",
        "Tuned settings",
        "400",
        "800",
        "2.25 -> 0.50",
        "made up",
    ):
        assert part in text
    assert "stopped" not in text


def test_a_kept_baseline_is_said():
    """Keeping the baseline is a result and comes with its reason."""
    text = str(_comparison(kept=True, speedup=None))
    assert text.startswith("Baseline kept: waits for data.\n")
    assert "Race" not in text
    assert ".." not in text


def test_a_stopped_training_is_said_with_its_limit():
    """The reader learns which of the two did not run to its end."""
    assert "with defaults was stopped at its limit of 30 s" in str(_comparison(kept=True, speedup=None, cut=True))


def test_the_document_is_plain_json():
    """It survives strict JSON with the race, both settings and both trainings in it."""
    comparison = _comparison(kept=False, speedup=Speedup(median=1.9, low=1.71, high=float("inf"), rounds=6))
    document = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert document["speedup"]["rounds"] == 6
    assert document["settings"]["batch_size"] == 20
    assert document["training"]["tuned"]["samples_per_s"] == pytest.approx(800)
    assert document["warnings"] == ["noisy"]
