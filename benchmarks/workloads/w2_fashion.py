"""W2, bound by compute: torchvision's mobilenet_v3_small on Fashion-MNIST as 3x32x32."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import Dataset

from . import Workload
from .fashion_mnist import Part, fashion_mnist

__all__ = ["Clothes", "clothes", "make", "make_optimizer", "mobilenet"]


class Clothes(Dataset[tuple[Tensor, Tensor]]):
    """Grey images as three equal channels, about in [-1, 2]."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = (self.images[index].float() / 255 - 0.286) / 0.353
        return image.expand(3, 32, 32), self.labels[index]


def clothes(part: Part, size: int | None) -> Clothes:
    """The dataset."""
    return Clothes(*fashion_mnist(part, size))


def mobilenet() -> nn.Module:
    """1.5 million parameters."""
    from torchvision.models import mobilenet_v3_small

    model: nn.Module = mobilenet_v3_small(weights=None, num_classes=10)
    return model


def make_optimizer(params: Iterable[Any]) -> AdamW:
    return AdamW(params, lr=1e-3)


def make(size: int | None) -> Workload:
    return Workload(
        name="w2",
        summary="clothes: Fashion-MNIST as 3x32x32 tensors, mobilenet_v3_small",
        model=mobilenet,
        dataset=partial(clothes, "train", size),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
        held_out=partial(clothes, "t10k", size),
    )
