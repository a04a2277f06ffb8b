"""Lightning: tune in the place where a BatchSizeFinder would stand, then train with what was found.

Run it with ``python examples/lightning_callback.py`` (about 30 s on two cores; nothing is downloaded).
"""

from __future__ import annotations

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from autotune.integrations import AutotuneCallback


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


class WaveModule(LightningModule):
    """A small one-dimensional conv net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, 16, 15, stride=4, padding=7),
            nn.ReLU(),
            nn.Conv1d(16, 32, 9, stride=4, padding=4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 32, 8),
        )

    def training_step(self, batch, index):
        waves, labels = batch
        return nn.functional.cross_entropy(self.net(waves), labels)

    def train_dataloader(self):
        return DataLoader(Waves(), batch_size=32, shuffle=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(time_budget_s: float = 25.0) -> None:
    torch.manual_seed(0)
    tuning = AutotuneCallback(time_budget_s=time_budget_s)
    trainer = Trainer(max_epochs=1, callbacks=[tuning], logger=False, enable_checkpointing=False)
    trainer.fit(WaveModule())
    print(tuning.tuned)
    for one in tuning.not_applied:
        print(f"not applied: {one}")


if __name__ == "__main__":  # the loader's workers import this file again on macOS and Windows
    main(*map(float, sys.argv[1:]))
