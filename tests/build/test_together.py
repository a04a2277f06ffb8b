"""All builders on one real task: what a trial and the user's training both run."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autotune.build import TrainStep, build_loader, build_optimizer, prepare_model, switches
from autotune.settings import Settings
from autotune.task import Task, resolve_loss

ROWS = 46


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.convolution(self.norm(x)))


def net() -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(2)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def train(settings: Settings) -> OrderedDict[str, torch.Tensor]:
    """Two epochs over 46 images in order; the trained weights."""
    model = net()
    images = torch.randn(ROWS, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(ROWS) % 4
    loader = DataLoader(TensorDataset(images, labels), batch_size=16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    task = Task(model, loader, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer, max_grad_norm=0.5)
    loss = resolve_loss(
        loss_fn=task.loss_fn, training_step=task.training_step, model=net(), batch=(images[:2], labels[:2])
    )
    with switches(settings):
        prepared = prepare_model(model, settings, "cpu")
        step = TrainStep(
            prepared,
            build_optimizer(task.optimizer, prepared, settings),
            loss=loss,
            settings=settings,
            device="cpu",
            reduction=loss.reduction,
            max_grad_norm=task.max_grad_norm,
        )
        for _ in range(2):
            for batch in build_loader(task.data, settings, has_batch_norm=False):
                step(batch)
            step.flush()
    return prepared.state_dict()


@pytest.mark.parametrize(
    "settings",
    [
        Settings(batch_size=4, gradient_accumulation_steps=4),
        Settings(batch_size=8, gradient_accumulation_steps=2, channels_last=True, optimizer_implementation="foreach"),
        Settings(batch_size=16, optimizer_implementation="fused", num_threads=1, precision="tf32"),
    ],
    ids=["accumulation", "layout", "fused"],
)
def test_settings_with_one_effective_batch_train_alike(settings: Settings) -> None:
    """Two epochs with a ragged end arrive at the weights of plain training at batch 16."""
    expected = train(Settings(batch_size=16))
    for name, value in train(settings).items():
        torch.testing.assert_close(
            value, expected[name], rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["model", "blocks"])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo's own
def test_a_traced_model_trains_alike_and_loads_into_the_plain_one(scope: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under dynamo (without its code generation) the weights are the same, and so are their names."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, mode: real(function, backend="eager"))
    state = train(Settings(batch_size=16, compile_mode="default", compile_scope=scope))
    net().load_state_dict(state)
    expected = train(Settings(batch_size=16))
    for name, value in state.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
