"""The task that ``tasks.toml`` names: small photos, decoded and augmented, and a small network."""

from __future__ import annotations

import torch
from torch import nn

from autotune import Task
from autotune.demo import prepare_crops
from autotune.demo.dataset import CropDataset
from autotune.demo.model import CropNet


def make_optimizer(params):  # a function, so that the tuner can make a fresh one for each trial
    return torch.optim.AdamW(params, lr=1e-3)


def task() -> Task:
    dataset = CropDataset(prepare_crops(crops=2600))
    return Task(CropNet, dataset, loss_fn=nn.CrossEntropyLoss(), optimizer=make_optimizer, base_batch_size=32)
