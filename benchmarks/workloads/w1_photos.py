"""W1, bound by loading: JPEG files of 500x375 pixels, decoded, cropped, flipped and jittered for three convolutions.

The photos and everything after the decoding are the demo's. 700 files are listed 20 times, so that an epoch is long
enough for the start of workers not to count.
"""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

from PIL import Image
from torch import Tensor, nn

import autotune.demo
from autotune.demo.crops import PHOTOS, crop_label, crop_name
from autotune.demo.dataset import CropDataset
from autotune.demo.model import CropNet
from autotune.demo.task import make_optimizer

from . import Workload
from .cache import prepared

__all__ = ["ListedAgain", "make", "photos"]

FILES, TIMES = 700, 20
_SIZE = (500, 375)
_SMALLEST_HEIGHT = 128
_QUALITY = 85


class ListedAgain(CropDataset):
    """The crops of a folder, each listed several times."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def __len__(self) -> int:
        return self.times * self.crops

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return super().__getitem__(index % self.crops)


def photos(files: int = FILES, times: int = TIMES) -> ListedAgain:
    """The dataset; the files are written first where they are missing."""
    return ListedAgain(prepared(f"w1-photos-{files}", partial(_write_crops, files=files)), times)


def make(size: int | None) -> Workload:
    files, times = FILES, TIMES
    if size is not None:
        files = min(FILES, max(len(PHOTOS), size // 2))
        times = max(1, size // files)
    return Workload(
        name="w1",
        summary=f"photos: {files} JPEG of {_SIZE[0]}x{_SIZE[1]} listed {times}x, decode and augment, 3 convolutions",
        model=CropNet,
        dataset=partial(photos, files, times),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
    )


def _write_crops(folder: Path, files: int) -> None:
    folder.mkdir()
    originals = [_original(name) for name in PHOTOS]
    for index in range(files):
        _crop(originals[crop_label(index)], index).save(folder / crop_name(index), format="JPEG", quality=_QUALITY)
    (folder / "manifest.json").write_text(json.dumps({"crops": files}))


def _original(name: str) -> Image.Image:
    with Image.open(Path(autotune.demo.__file__).parent / "photos" / f"{name}.jpg") as photo:
        converted: Image.Image = photo.convert("RGB")
        return converted


def _crop(photo: Image.Image, index: int) -> Image.Image:
    rng = random.Random(index)
    width, height = _SIZE
    cut_height = rng.randint(_SMALLEST_HEIGHT, min(photo.height, photo.width * height // width))
    cut_width = cut_height * width // height
    left, top = rng.randint(0, photo.width - cut_width), rng.randint(0, photo.height - cut_height)
    box = (left, top, left + cut_width, top + cut_height)
    crop: Image.Image = photo.resize(_SIZE, Image.Resampling.BILINEAR, box=box)
    return crop
