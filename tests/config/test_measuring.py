"""``find_lr()`` and ``noise_scale()``: in this process, on toy tasks, with everything of the caller's as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotune.config import TunedConfig, measuring
from autotune.errors import DoesNotFitError, SettingsError, TaskError
from autotune.hardware import Hardware
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.settings import Settings
from autotune.task import Facts, Task

from .conftest import TinyNet, images, sgd

MakeConfig = Callable[..., TunedConfig]


class Box:
    """Answers probes in place of a child."""

    def __init__(self, facts: Facts, hardware: Hardware, answer: Callable[[Probe], Outcome]) -> None:
        self.facts, self.hardware, self.answer = facts, hardware, answer
        self.asked: list[Probe] = []

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None: ...

    def describe(self) -> Facts:
        """The facts."""
        return self.facts

    def run(self, probe: Probe) -> Outcome:
        """The answer."""
        self.asked.append(probe)
        return self.answer(probe)


@pytest.fixture
def boxed(monkeypatch: pytest.MonkeyPatch, make_config: MakeConfig, real_hardware: Hardware) -> Callable[..., Box]:
    """Puts a box in the sandbox's place."""
    monkeypatch.setattr(Hardware, "detect", staticmethod(lambda **_: real_hardware))

    def put(answer: Callable[[Probe], Outcome]) -> Box:
        box = Box(make_config().facts, real_hardware, answer)
        monkeypatch.setattr(measuring, "Sandbox", lambda *_: box)
        return box

    return put


def _fell(probe: Probe) -> Measured:
    """A loss that falls by two between 1e-3 and 1e-1."""
    rates = [1e-6 * 10 ** (index / 10) for index in range(61)]
    losses = [2.3 if rate < 1e-3 else max(0.3, 2.3 - (index - 30) / 10) for index, rate in enumerate(rates)]
    sweep = tuple(zip(rates, losses, strict=True))
    return Measured(kind=probe.kind, settings=probe.settings, chunks=(), sweep=sweep)


def test_each_seed_is_a_sweep_of_its_own_on_the_tuned_settings(
    boxed: Callable[..., Box], make_config: MakeConfig
) -> None:
    """Batch and accumulation as tuned, compilation left out, the time shared."""
    box = boxed(_fell)
    settings = Settings(batch_size=16, gradient_accumulation_steps=4, compile_mode="default")
    found = make_config(settings).find_lr(seeds=3, low=1e-5, high=2.0, steps=50, time_budget_s=30.0)
    assert [probe.seed for probe in box.asked] == [0, 1, 2]
    assert {probe.settings for probe in box.asked} == {settings.replace(compile_mode=None)}
    assert {(probe.rates, probe.steps, probe.window_s) for probe in box.asked} == {((1e-5, 2.0), 50, 10.0)}
    assert found.suggestion is not None
    assert 1e-3 < found.suggestion < 1e-1
    assert found.current == pytest.approx(0.04)
    assert "64 samples per optimizer step" in found.note


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (OutOfMemory(kind="lr_range", settings=Settings(), where="killed", message="gone"), DoesNotFitError, "gone"),
        (Rejected(kind="lr_range", settings=Settings(), phase="step", reason="Odd."), TaskError, "rejected: Odd."),
        (Crashed(kind="lr_range", settings=Settings(), exit_code=-9), TaskError, "crashed"),
    ],
)
def test_what_goes_wrong_is_one_clear_error(
    boxed: Callable[..., Box], make_config: MakeConfig, outcome: Outcome, error: type[Exception], said: str
) -> None:
    """For both questions."""
    boxed(lambda _: outcome)
    with pytest.raises(error, match=said):
        make_config().find_lr()
    with pytest.raises(error, match=said):
        make_config().noise_scale()


@pytest.mark.parametrize(
    "arguments",
    [
        {"low": 0.0},
        {"low": 1.0, "high": 0.1},
        {"steps": 10},
        {"seeds": 0},
        {"time_budget_s": 0},
        {"high": float("inf")},
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(make_config: MakeConfig, arguments: dict[str, Any]) -> None:
    """By the argument's name."""
    with pytest.raises(SettingsError, match=next(iter(reversed(arguments)))):
        make_config().find_lr(**arguments)


def test_without_a_task_it_is_asked_for(make_config: MakeConfig) -> None:
    """A loaded config has nothing to train."""
    loaded = TunedConfig.from_json(make_config().to_json())
    for ask in (loaded.find_lr, loaded.noise_scale):
        with pytest.raises(TaskError, match="task="):
            ask()


def test_nothing_of_the_callers_is_changed(
    monkeypatch: pytest.MonkeyPatch, make_config: MakeConfig, real_hardware: Hardware
) -> None:
    """In the caller's own process, where nothing else protects it: weights, gradients, modes, random numbers."""
    monkeypatch.setattr(Hardware, "detect", staticmethod(lambda **_: real_hardware))
    model = TinyNet()
    model.norm.eval()
    given = Task(model, images(), loss_fn=torch.nn.CrossEntropyLoss(), optimizer=sgd, device="cpu")
    config = make_config(Settings(batch_size=8), baseline=Settings(batch_size=2), of=given)
    model.classify.weight.grad = torch.ones_like(model.classify.weight)

    def state() -> list[Any]:
        tensors = [one.detach().clone() for one in (*model.parameters(), *model.buffers())]
        return [*tensors, torch.get_rng_state(), model.classify.weight.grad.clone()]

    before = state()
    found = config.find_lr(seeds=2, steps=30, time_budget_s=20.0, isolate=False)
    noise = config.noise_scale(isolate=False, time_budget_s=1.0)
    assert all(torch.equal(one, other) for one, other in zip(before, state(), strict=True))
    assert (model.training, model.norm.training) == (True, False)
    assert len(found.curves) == 2
    assert noise.small_batch == 2
    assert "grows while the loss falls" in noise.note


def test_another_model_is_looked_at_where_it_is_given(boxed: Callable[..., Box], make_config: MakeConfig) -> None:
    """The model as trained so far, in place of the task's; the config's own task stays."""
    seen: list[Any] = []

    def answer(probe: Probe) -> Measured:
        return Measured(
            kind=probe.kind, settings=probe.settings, chunks=(), largest_batch_rows=2, square_norms=((3.0, 1.0),) * 4
        )

    box = boxed(answer)
    config, trained = make_config(), TinyNet()
    assert config.task is not None
    was = config.task.model
    original = measuring.Sandbox
    measuring.Sandbox = lambda task, *_: (seen.append(task.model), box)[1]  # type: ignore[assignment,misc]
    try:
        config.noise_scale(trained)
    finally:
        measuring.Sandbox = original  # type: ignore[misc]
    assert seen == [trained]
    assert config.task.model is was
    with pytest.raises(TaskError, match="model must be"):
        config.noise_scale("model")  # type: ignore[arg-type]


def test_the_measured_noise_scale_is_kept_and_shown(make_config: MakeConfig) -> None:
    """Beside what fits and what is fastest; through JSON as well."""
    from autotune.learning_rate import SquareNorms, noise_scale

    noise = noise_scale([SquareNorms(2.0 + 300 / 16, 2.0 + 300 / 128)] * 3, small_batch=16, large_batch=128)
    config = make_config()
    config = dataclasses.replace(config, evidence=dataclasses.replace(config.evidence, noise_scale=noise))
    assert "fits 64 or more · fastest 64 · still useful 150" in " ".join(str(config).split())
    assert TunedConfig.from_json(config.to_json()).evidence.noise_scale == noise
