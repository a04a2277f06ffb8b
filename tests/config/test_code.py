"""The lines to paste: short, plain, and running."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from autotune.config import TunedConfig
from autotune.config.code import training_code
from autotune.learning_rate import LearningRatePlan
from autotune.settings import Settings
from autotune.task import Task

MakeConfig = Callable[..., TunedConfig]

_ALL_AT_ONCE = Settings(
    batch_size=8,
    gradient_accumulation_steps=4,
    num_workers=1,
    prefetch_factor=2,
    persistent_workers=True,
    precision="fp16-mixed",
    channels_last=True,
    compile_mode="default",
    optimizer_implementation="fused",
    cudnn_benchmark=True,
    num_threads=1,
)


def _run(config: TunedConfig, code: str | None = None, **names: Any) -> dict[str, Any]:
    """Executes the code (or another) on the config's own model and data, two epochs."""
    task = config.task
    given = {"model": task.build_model(), "dataset": task.data.dataset, "epochs": 2, "loss_fn": task.loss_fn, **names}
    with config.switches():
        exec(compile(code or config.code(), "<code>", "exec"), given)
    return given


@pytest.mark.parametrize(
    "settings",
    [
        Settings(batch_size=16),
        Settings(batch_size=16, gradient_accumulation_steps=4, optimizer_implementation="fused", num_threads=1),
        Settings(batch_size=32, channels_last=True, precision="tf32"),
        Settings(batch_size=35, precision="bf16-mixed"),
    ],
)
def test_code_runs_and_trains(make_config: MakeConfig, settings: Settings) -> None:
    """Executed as it stands it leaves finite, changed weights and the scaled rate."""
    config = make_config(settings)
    torch.manual_seed(0)
    before = config.task.build_model().state_dict()
    torch.manual_seed(0)
    names = _run(config)
    after = names["model"].state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert any(not torch.equal(after[name], before[name]) for name in before)
    assert names["loader"].batch_size == settings.batch_size
    if not config.learning_rate.warmup_steps:
        assert names["optimizer"].param_groups[0]["lr"] == pytest.approx(0.01 * config.learning_rate.factor)


def test_code_trains_as_the_train_step_does(make_config: MakeConfig) -> None:
    """Without partial groups and warm-up the weights after an epoch agree."""
    plan = LearningRatePlan(factor=4.0, rule="linear", capped=False, warmup_steps=0, notes=())
    config = make_config(
        Settings(batch_size=7, gradient_accumulation_steps=5), baseline=Settings(batch_size=7), learning_rate=plan,
        max_grad_norm=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    names = _run(config, epochs=1)
    torch.manual_seed(0)
    model = config.prepare(config.task.build_model())
    step = config.train_step(model, config.optimizer(model))
    for batch in config.dataloader():
        step(batch)
    for ours, theirs in zip(names["model"].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach())


class Residual(nn.Module):
    """Two equal blocks over images of (batch, 3, 8, 8); counts their forward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.classify = nn.Linear(192, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of two classes."""
        for block in self.blocks:
            images = block(images)
        return self.classify(images.flatten(1))


class Block(nn.Module):
    """One convolution."""

    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images of the same shape."""
        Block.passes += torch.is_grad_enabled()
        return torch.relu(self.conv(images))


def test_batches_that_plain_torch_does_not_group_are_said(make_config: MakeConfig) -> None:
    """The code runs, and names what gives the measured batches."""
    config = make_config(Settings(batch_size=16, length_grouped=True))
    (line,) = [line for line in config.code().splitlines() if "DataLoader" in line]
    assert line.endswith("# not grouped by length as measured: tuned.dataloader() is")
    _run(config)


def test_recomputed_activations_are_in_the_code(make_config: MakeConfig, task: Task) -> None:
    """Each block runs forward twice per step, as in the run that was measured."""
    task = Task(Residual(), task.data.dataset, loss_fn=nn.CrossEntropyLoss(), device="cpu")
    config = make_config(Settings(batch_size=35, activation_checkpointing=True), of=task)
    before = Block.passes
    model = copy.deepcopy(task.build_model())
    _run(config, model=model, blocks=list(model.blocks), epochs=1)
    assert Block.passes - before == 2 * 2 * 2  # blocks, steps, passes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("steps", [1, 4])
def test_never_more_than_fifteen_lines(make_config: MakeConfig, device: str, pinned: bool, steps: int) -> None:
    """With everything switched on at once it still fits, and parses."""
    settings = _ALL_AT_ONCE.replace(gradient_accumulation_steps=steps, batch_size=32 if steps == 1 else 8)
    config = make_config(settings, max_grad_norm=1.0, baseline=Settings(batch_size=8))
    document = copy.deepcopy(config.to_json())
    document["dataloader"]["pin_memory"] = pinned
    saved = _replaced(config.saved, device_type=device)
    code = training_code(document, saved, config.facts.batch_signature)
    assert len(code.splitlines()) <= 15
    ast.parse(code)
    assert ('.to("cuda"' in code) == (device == "cuda")
    assert ("non_blocking=True" in code) == (device == "cuda" and pinned)
    order = ["scale(loss)", "unscale_", "clip_grad_norm_", "scaler.step", "scaler.update", "zero_grad", "warmup.step"]
    places = [code.index(call) for call in order]
    assert places == sorted(places)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_everything_at_once_runs(make_config: MakeConfig, device: str) -> None:
    """fp16 scaler, clipping, accumulation and warm-up in one run (without compiling and worker processes).

    The code for an accelerator runs on the CPU with the device's name replaced.
    """
    settings = _ALL_AT_ONCE.replace(compile_mode=None, num_workers=0)
    config = make_config(settings, max_grad_norm=1.0, baseline=Settings(batch_size=8))
    document = config.to_json()
    for section, name in (("autocast", "device_type"), ("grad_scaler", "device")):
        document[section][name] = device
    code = training_code(document, _replaced(config.saved, device_type=device), config.facts.batch_signature)
    assert (f'.to("{device}"' in code) == (device == "cuda")
    names = _run(config, code.replace('"cuda"', '"cpu"'))
    assert names["warmup"].last_epoch == 4


def test_dict_batches_are_moved_by_value(make_config: MakeConfig) -> None:
    """On an accelerator each tensor of a dict batch goes there."""
    data = [{"x": torch.zeros(4), "labels": torch.tensor(index % 2)} for index in range(32)]
    config = make_config(Settings(batch_size=16), of=Task(_OwnLoss, data, optimizer=torch.optim.SGD))
    saved = _replaced(config.saved, device_type="cuda")
    code = training_code(config.to_json(), saved, config.facts.batch_signature)
    assert 'batch = {name: value.to("cuda") for name, value in batch.items()}' in code
    _run(config, code.replace('"cuda"', '"cpu"'))


def test_defaults_of_the_class_are_left_out(make_config: MakeConfig) -> None:
    """Only what differs from torch's defaults is written, lr always."""
    line = next(line for line in make_config().code().splitlines() if line.startswith("optimizer"))
    assert line == "optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9, foreach=True)  # lr was 0.01"


def test_code_names_what_the_reader_brings(make_config: MakeConfig, task: Task) -> None:
    """collate_fn, an optimizer of one's own and a training step are the reader's; the code uses them and runs."""
    loader = DataLoader(task.data.dataset, batch_size=16, collate_fn=_pairs, shuffle=True)
    task = Task(task.model, loader, training_step=_step, optimizer=_OwnSGD)
    config = make_config(Settings(batch_size=64), of=task)
    first = config.code().splitlines()[0]
    assert all(name in first for name in ("training_step(model, batch)", "optimizer", "collate_fn"))
    model = task.build_model()
    optimizer = _OwnSGD(model.parameters())
    names = _run(config, model=model, optimizer=optimizer, training_step=_step, collate_fn=_pairs)
    assert names["loader"].collate_fn is _pairs
    assert optimizer.param_groups[0]["initial_lr"] == pytest.approx(0.4)


def test_models_own_loss_is_taken_from_its_output(make_config: MakeConfig) -> None:
    """A dict batch goes in by name, and ``.loss`` comes out."""
    data = [{"x": torch.zeros(4), "labels": torch.tensor(index % 2)} for index in range(32)]
    config = make_config(Settings(batch_size=16), of=Task(_OwnLoss, data, optimizer=torch.optim.SGD))
    assert "loss = model(**batch).loss" in config.code()
    _run(config, loss_fn=None)


def test_summed_loss_is_not_divided(make_config: MakeConfig, task: Task) -> None:
    """Sums of micro-batches add up to the sum of the batch."""
    task = Task(task.model, task.data.dataset, loss_fn=nn.CrossEntropyLoss(reduction="sum"), optimizer=torch.optim.SGD)
    code = make_config(Settings(batch_size=16, gradient_accumulation_steps=4), of=task).code()
    assert "loss = loss_fn(model(inputs), target)\n" in code


def _replaced(record: Any, **changes: Any) -> Any:
    return type(record)(**{**{name: getattr(record, name) for name in record.__slots__}, **changes})


def _pairs(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


class _OwnSGD(torch.optim.SGD):
    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)


class _OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
        scores = self.scores(x)
        return SimpleNamespace(loss=nn.functional.cross_entropy(scores, labels), logits=scores)
