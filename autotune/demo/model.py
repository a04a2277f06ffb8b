"""The demo's model: three convolutions of width 16, small beside the work of decoding JPEG."""

from __future__ import annotations

from torch import Tensor, nn

from autotune.demo.crops import PHOTOS

__all__ = ["CropNet"]


class CropNet(nn.Module):
    """Three 3x3 convolutions with ReLU and stride 2, an average over the picture, a linear layer.

    Args:
        classes: Number of outputs; default: one for each photo.
        width: Channels of each convolution.
    """

    def __init__(self, classes: int = len(PHOTOS), width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classify = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of shape (batch, classes) for images of shape (batch, 3, height, width)."""
        logits: Tensor = self.classify(self.features(images).flatten(1))
        return logits
