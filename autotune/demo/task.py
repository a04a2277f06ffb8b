"""The demo as a task, ready for ``tune``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import AdamW

from autotune.demo.crops import prepare_crops
from autotune.demo.model import CropNet
from autotune.errors import MissingPackageError
from autotune.task import Task

__all__ = ["BATCH_SIZE", "LEARNING_RATE", "demo_task", "make_optimizer"]

BATCH_SIZE = 32
"""The demo's batch before tuning, for which its learning rate was chosen."""

LEARNING_RATE = 1e-3


def make_optimizer(params: Iterable[Any]) -> AdamW:
    """AdamW at the demo's learning rate."""
    return AdamW(params, lr=LEARNING_RATE)


def demo_task(
    cache_dir: str | Path | None = None, crops: int = 5200, *, say: Callable[[str], None] = lambda _: None
) -> Task:
    """The demo's training job: JPEG decode, augmentation, a small conv net, AdamW, cross-entropy.

    The first call writes the crops (about 5 s); later ones find them. 5,200 of them are enough for the tuner to
    consider eight times the batch size of 32.

    Args:
        cache_dir: Where the crops are kept; None is the user's cache folder.
        crops: Size of the dataset, at least 10.
        say: Gets a line of progress now and then.

    Raises:
        SettingsError: Too few crops.
        MissingPackageError: torchvision or Pillow is not installed.
        AutotuneError: The crops cannot be written.
    """
    folder = prepare_crops(cache_dir, crops, say=say)
    try:
        from autotune.demo.dataset import CropDataset
    except ImportError as error:
        raise MissingPackageError(
            f"The demo needs torchvision and Pillow ({error}).", 'Run: pip install "torch-autotune[demo]".'
        ) from error
    return Task(
        CropNet,
        CropDataset(folder),
        loss_fn=nn.CrossEntropyLoss(),
        optimizer=make_optimizer,
        base_batch_size=BATCH_SIZE,
        name="demo: which photo is this crop from",
    )
