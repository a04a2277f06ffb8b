"""Trains from a config alone, in a process that cannot import the package; prints the first and the last loss."""

from __future__ import annotations

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.modules["autotune"] = None  # from here on importing it raises
with open(sys.argv[1], encoding="utf-8") as file:
    cfg = json.load(file)

torch.manual_seed(0)
labels = torch.arange(512) % 2
dataset = TensorDataset(torch.randn(512, 3, 8, 8) + labels[:, None, None, None], labels)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
model.to(memory_format=getattr(torch, cfg["memory_format"]))
if cfg["torch"]["num_threads"]:
    torch.set_num_threads(cfg["torch"]["num_threads"])
name = cfg["optimizer"]["name"].rpartition(".")[2]
optimizer = getattr(torch.optim, name)(model.parameters(), **cfg["optimizer"]["kwargs"])
scaler = torch.amp.GradScaler(**cfg["grad_scaler"])
autocast = {**cfg["autocast"], "dtype": getattr(torch, cfg["autocast"]["dtype"])}
steps = cfg["gradient_accumulation_steps"]
losses = []
for _ in range(3):
    for index, (inputs, target) in enumerate(DataLoader(dataset, **cfg["dataloader"]), start=1):
        with torch.autocast(**autocast):
            loss = nn.functional.cross_entropy(model(inputs), target)
        scaler.scale(loss / steps).backward()
        losses.append(loss.item())
        if index % steps == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
print(losses[0], losses[-1])
