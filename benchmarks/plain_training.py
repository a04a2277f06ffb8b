"""Trains the demo's job from a tuned JSON alone, where ``autotune`` cannot be imported; prints the rate.

    python benchmarks/plain_training.py tuned.json FOLDER_OF_CROPS [SECONDS]

Used by ``round_trip.py``; a template for projects that only get the JSON.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

WARM_UP_S = 3.0


class Crops(Dataset):
    """JPEG crops named by number; the photo a crop comes from is its number modulo 10."""

    def __init__(self, folder: str) -> None:
        self.names = sorted(path.name for path in Path(folder).glob("*.jpg"))
        self.folder = folder
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(64, scale=(0.3, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
                transforms.ToTensor(),
                transforms.Normalize((0.45, 0.45, 0.45), (0.25, 0.25, 0.25)),
            ]
        )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(Path(self.folder) / self.names[index]) as image:
            return self.augment(image.convert("RGB")), index % 10


def network() -> nn.Module:
    """Three convolutions of width 16, as in the demo."""
    layers: list[nn.Module] = []
    for channels in (3, 16, 16):
        layers += [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def rate(config: dict, folder: str, seconds: float) -> float:
    """Samples per second of steady training under ``config``."""
    memory_format = getattr(torch, config["memory_format"])
    if config["torch"]["num_threads"]:
        torch.set_num_threads(config["torch"]["num_threads"])
    model = network().to(memory_format=memory_format)
    cls = getattr(torch.optim, config["optimizer"]["name"].rpartition(".")[2])
    optimizer = cls(model.parameters(), **config["optimizer"]["kwargs"])
    autocast = {**config["autocast"], "dtype": getattr(torch, config["autocast"]["dtype"])}
    steps = config["gradient_accumulation_steps"]
    loader = DataLoader(Crops(folder), **config["dataloader"])
    chunk = math.lcm(steps, max(1, config["dataloader"]["num_workers"]))
    done = rows = 0
    began, start = time.perf_counter(), None
    while True:
        for images, target in loader:
            with torch.autocast(**autocast):
                loss = nn.functional.cross_entropy(model(images.contiguous(memory_format=memory_format)), target)
            (loss / steps).backward()
            done += 1
            rows += len(target)
            if done % steps == 0:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            now = time.perf_counter()
            if done % chunk:
                continue
            if start is None and now - began > WARM_UP_S:
                start, rows = now, 0
            elif start is not None and now - start > seconds:
                return rows / (now - start)


if __name__ == "__main__":
    sys.modules["autotune"] = None  # type: ignore[assignment]  # from here on importing it raises
    document = json.loads(Path(sys.argv[1]).read_text())
    print(rate(document, sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 8.0))
