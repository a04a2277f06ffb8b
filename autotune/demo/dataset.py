"""The demo's dataset: JPEG decoding and torchvision's usual augmentation, sample by sample."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms

from autotune.demo.crops import crop_label, crop_name

__all__ = ["IMAGE_PIXELS", "CropDataset"]

IMAGE_PIXELS = 64
"""Width and height of what the model sees."""


class CropDataset(Dataset[tuple[Tensor, int]]):
    """Crops of photos with the photo's number as label.

    Each item is a float image of shape (3, 64, 64), about in [-2, 2], and an int label.

    Args:
        folder: What ``prepare_crops`` returned.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.crops = int(json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))["crops"])
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(IMAGE_PIXELS, scale=(0.3, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(brightness=0.3, contrast=0.3, saturation=0.3),
                transforms.ToTensor(),
                transforms.Normalize((0.45, 0.45, 0.45), (0.25, 0.25, 0.25)),
            ]
        )

    def __len__(self) -> int:
        return self.crops

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.crops:
            raise IndexError(f"crop {index} of {self.crops}")
        with Image.open(self.folder / crop_name(index)) as crop:
            image: Tensor = self.augment(crop.convert("RGB"))
        return image, crop_label(index)
