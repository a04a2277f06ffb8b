"""Tune, then train with ``TrainStep``: precision, accumulation, clipping and the last, partial group are its business.

Run it with ``python examples/train_step.py`` (about 40 s on two cores; needs the extra ``demo`` for its photos).
"""

from __future__ import annotations

import math

import torch
from torch import nn

from autotune import autotune
from autotune.demo import prepare_crops
from autotune.demo.dataset import CropDataset
from autotune.demo.model import CropNet


def make_optimizer(params):  # a function, so that the tuner can make a fresh one for each trial
    return torch.optim.AdamW(params, lr=1e-3)


def main() -> None:
    dataset = CropDataset(prepare_crops(crops=2600, say=print))
    tuned = autotune(
        CropNet,
        dataset,
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
        base_batch_size=32,
        max_grad_norm=1.0,
        time_budget_s=25,
    )
    print(tuned)
    tuned.save("autotune.json")  # TunedConfig.load reads it again; any other program can, too

    torch.manual_seed(0)
    model = tuned.prepare(CropNet())
    loader = tuned.dataloader()
    optimizer = tuned.optimizer(model)
    updates_per_epoch = math.ceil(len(loader) / tuned.settings.gradient_accumulation_steps)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * updates_per_epoch)
    step = tuned.train_step(model, optimizer, scheduler=scheduler)
    for epoch in range(2):
        losses = [step(batch) for batch in loader]
        step.flush()  # takes the optimizer step of a last, partial accumulation group
        values = torch.stack(losses)
        rate = f"{step.samples_per_s:.0f} samples/s" if step.samples_per_s else "too short to tell the rate"
        print(f"epoch {epoch}: loss {values[0]:.3f} at its start, {values[-1]:.3f} at its end, {rate}")


if __name__ == "__main__":  # the loader's workers import this file again on macOS and Windows
    main()
