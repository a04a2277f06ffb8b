"""Image models of timm and torchvision, built from scratch: classifiers, and detectors with lists and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.models.detection import FasterRCNN, fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.models.detection.anchor_utils import AnchorGenerator

from autotune.task import Task


class Scenes(Dataset[Any]):
    """Images of unequal sizes with 1 to 3 boxes each, as detection datasets give them."""

    def __init__(self, samples: int = 32) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        boxes = 1 + index % 3
        corners = torch.tensor([[2.0, 2.0, 20.0, 20.0], [5.0, 5.0, 30.0, 25.0], [1.0, 8.0, 15.0, 30.0]])[:boxes]
        image = torch.full((3, 40 + 8 * (index % 3), 48), 0.1 * (index % 10))
        return image, {"boxes": corners, "labels": torch.ones(boxes, dtype=torch.int64)}


def columns(samples: list[Any]) -> tuple[Any, ...]:
    """The collate function of torchvision's references."""
    return tuple(zip(*samples, strict=True))


def detector() -> nn.Module:
    """A Faster R-CNN over a backbone of two convolutions."""
    backbone = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1)
    )
    backbone.out_channels = 8
    return FasterRCNN(
        backbone,
        num_classes=2,
        min_size=32,
        max_size=64,
        rpn_anchor_generator=AnchorGenerator(((16,),), ((1.0,),)),
        rpn_pre_nms_top_n_train=20,
        rpn_post_nms_top_n_train=10,
        box_batch_size_per_image=8,
        rpn_batch_size_per_image=8,
    )


def photos(samples: int = 32) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.rand(samples, 3, 32, 32, generator=generator), torch.arange(samples) % 4)


def vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, img_size=32, embed_dim=24, depth=2, num_heads=2, num_classes=4
    )


def test_a_timm_transformer_is_trained_in_batches_of_the_size_tried(desk: Any) -> None:
    """With its own blocks recomputed in one probe."""
    put = desk(vit(), photos(), loss_fn=nn.CrossEntropyLoss())
    assert put.measure(batch_size=8).largest_batch_rows == 8
    assert put.measure("compute", batch_size=4, activation_checkpointing=True).samples_per_s > 0


def test_a_timm_network_with_batch_norm_takes_channels_last(desk: Any) -> None:
    """Its layers are seen for what they are: convolutions over images, and BatchNorm."""
    put = desk(timm.create_model("test_resnet", pretrained=False, num_classes=4), photos())
    assert put.facts.has_conv_4d
    assert put.facts.has_batch_norm
    assert put.facts.loss_inferred
    assert put.measure("compute", batch_size=4, channels_last=True).samples_per_s > 0


def test_timms_mixup_in_the_collate_function_gives_soft_targets(desk: Any) -> None:
    """Targets of (rows, classes) go to timm's own loss, and even batches are all that mixup can make."""
    mixup = Mixup(mixup_alpha=0.2, num_classes=4)

    def mixed(samples: list[Any]) -> Any:
        images, labels = torch.utils.data.default_collate(samples)
        return mixup(images, labels)

    put = desk(vit(), photos(), loss_fn=SoftTargetCrossEntropy(), collate_fn=mixed)
    assert put.facts.batch_signature == "tuple(float32[*,3,32,32], float32[*,4])"
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_timms_optimizers_are_built_again(desk: Any) -> None:
    """``create_optimizer_v2`` makes parameter groups with and without weight decay; every option is kept."""
    model = vit()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    put = desk(model, photos(), optimizer=optimizer)
    assert sorted(group["weight_decay"] for group in put.facts.optimizer_groups) == [0.0, 0.05]
    assert put.measure(batch_size=8).largest_batch_rows == 8


def test_a_detectors_losses_are_added(desk: Any) -> None:
    """A list of images of unequal sizes and a list of dicts go in, a dict of losses comes out, rows are images."""
    put = desk(detector(), DataLoader(Scenes(), batch_size=2, collate_fn=columns))
    assert put.facts.loss.startswith("the sum of the model's loss_classifier, loss_box_reg")
    assert not put.facts.loss_inferred
    assert put.facts.batches_kept is None
    assert put.facts.sample_bytes >= 4 * 3 * 40 * 48
    assert put.measure(batch_size=3).largest_batch_rows == 3
    assert put.measure(batch_size=2, num_workers=1).largest_batch_rows == 2


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_list_of_images_is_one_argument_however_short(desk: Any, rows: int) -> None:
    """One or two images are still a list of images, not the one or two arguments of the model; so is the signature."""
    put = desk(detector(), DataLoader(Scenes(8), batch_size=rows, collate_fn=columns))
    assert put.facts.reduction == "mean"
    assert put.measure("compute", batch_size=rows).largest_batch_rows == rows
    image = "float32[3,?,48]" if rows > 1 else "float32[3,40,48]"
    assert put.facts.batch_signature.startswith(f"tuple(tuple(* x {image}), tuple(* x dict(boxes=float32[")


def test_a_detector_of_the_model_zoo_is_described(desk: Any) -> None:
    """The real size, without its weights, on one image."""
    model = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=2, min_size=32)
    facts = desk(model, DataLoader(Scenes(2), batch_size=1, collate_fn=columns)).facts
    assert facts.loss.startswith("the sum of the model's")
    assert facts.parameters > 10**7


def test_a_detector_and_its_data_cross_into_another_process(crossed: Callable[[Task], Task], desk: Any) -> None:
    """Anchor generators and the like are plain parts of the model."""
    task = crossed(Task(detector(), DataLoader(Scenes(8), batch_size=2, collate_fn=columns), device="cpu"))
    assert desk(task).measure("compute", batch_size=2).largest_batch_rows == 2
