"""Tune, then train in a loop of one's own: the tuned loader, model and optimizer are plain PyTorch objects.

Run it with ``python examples/own_loop.py`` (about 30 s on two cores; nothing is downloaded).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from autotune import autotune


class Waves(Dataset[tuple[Tensor, int]]):
    """Noisy sine waves; the label is the frequency. Each is made when it is asked for, as decoding would be."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % 8
        noise = torch.Generator().manual_seed(index)
        phase = torch.rand(1, generator=noise) * 6.28
        wave = torch.sin(torch.linspace(0, 6.28 * (label + 1), 512) + phase)
        return (wave + 0.5 * torch.randn(512, generator=noise)).unsqueeze(0), label


class WaveNet(nn.Sequential):
    """A small one-dimensional conv net."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(1, 16, 15, stride=4, padding=7),
            nn.ReLU(),
            nn.Conv1d(16, 32, 9, stride=4, padding=4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 32, 8),
        )


def make_optimizer(params):  # a function, so that the tuner can make a fresh one for each trial
    return torch.optim.AdamW(params, lr=1e-3)


def main() -> None:
    loss_fn = nn.CrossEntropyLoss()
    tuned = autotune(WaveNet, Waves(), loss_fn=loss_fn, optimizer=make_optimizer, base_batch_size=32, time_budget_s=25)
    print(tuned)

    torch.manual_seed(0)
    model = tuned.prepare(WaveNet())
    loader = tuned.dataloader()
    optimizer = tuned.optimizer(model)

    device = next(model.parameters()).device
    accumulate = tuned.settings.gradient_accumulation_steps
    dtype = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(tuned.settings.precision)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    for epoch in range(2):
        losses = []
        for index, (waves, labels) in enumerate(loader, start=1):
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                loss = loss_fn(model(waves.to(device)), labels.to(device))
            scaler.scale(loss / accumulate).backward()
            losses.append(loss.detach())
            if index % accumulate == 0 or index == len(loader):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        values = torch.stack(losses)
        print(f"epoch {epoch}: loss {values[0]:.3f} at its start, {values[-1]:.3f} at its end")


if __name__ == "__main__":  # the loader's workers import this file again on macOS and Windows
    main()
