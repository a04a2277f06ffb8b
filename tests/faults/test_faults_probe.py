"""A probe is like the training that follows: same lengths, same mode, same switches, enough steps."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from autotune.build.loader import build_loader
from autotune.measurement import Measured
from autotune.settings import Settings
from autotune.task import LoaderParts
from tests.faults.small_task import Net, bench, largest, probe, rows


class Elements(nn.Module):
    """Takes any width; out of memory above 4,096 elements a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 4096:
            raise torch.OutOfMemoryError
        return x.mean(1, keepdim=True) * self.scale


def test_a_size_found_on_short_rows_is_not_kept_for_long_ones() -> None:
    """The same model on rows of 8 and then of 128 numbers: 512 rows fit, then 32.

    Report: EleutherAI/lm-evaluation-harness#3654.
    """
    model = Elements()
    assert largest(model, rows(4096, features=8)).batch_size == 512
    assert largest(model, rows(4096, features=128)).batch_size == 32


class Tokens(nn.Module):
    """Could take 4,096 positions; out of memory above 1,024 tokens a batch."""

    max_len = 4096

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(50, 8), nn.Embedding(self.max_len, 8)
        self.classify = nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.numel() > 1024:
            raise torch.OutOfMemoryError
        return self.classify((self.token(ids) + self.position.weight[: ids.shape[1]]).mean(1))


def test_inputs_are_as_long_as_the_data_has_them() -> None:
    """At most 16 tokens a row: 64 rows fit, although the model could take rows of 4,096.

    Report: EleutherAI/lm-evaluation-harness#3252.
    """
    ids = torch.randint(50, (512, 16), generator=torch.Generator().manual_seed(0))
    assert largest(Tokens(), TensorDataset(ids, torch.arange(512) % 2)).batch_size == 64


def test_what_evaluation_needs_does_not_shrink_the_training_batch() -> None:
    """Eight rows fit in evaluation, 64 in training: 64.

    Report: huggingface/transformers#46809.
    """

    def refuse(net: Any, x: torch.Tensor) -> None:
        if len(x) > (64 if net.training else 8):
            raise torch.OutOfMemoryError

    net = Net(refuse)
    assert largest(net).batch_size == 64
    assert largest(net.eval()).batch_size == 64


def test_a_step_that_fails_only_the_third_time_counts() -> None:
    """Above 16 rows the third pass runs out of memory: 16.

    Report: pytorch/pytorch#16655.
    """
    passes: Counter[int] = Counter()

    def refuse(_: Any, x: torch.Tensor) -> None:
        passes[len(x)] += 1
        if len(x) > 16 and passes[len(x)] > 2:
            raise torch.OutOfMemoryError

    assert largest(Net(refuse)).batch_size == 16


@pytest.mark.parametrize("benchmark", [True, False])
def test_probes_run_under_the_switch_that_is_emitted(benchmark: bool) -> None:
    """Every pass sees cudnn.benchmark as the settings have it, and the caller's value is put back.

    Report: kazuto1011/deeplab-pytorch#74.
    """
    before = torch.backends.cudnn.benchmark
    seen: set[bool] = set()
    net = Net(lambda net, x: seen.add(torch.backends.cudnn.benchmark))
    torch.backends.cudnn.benchmark = not benchmark
    try:
        with contextlib.closing(bench(net)) as one:
            seen.clear()  # describing is no probe
            outcome = one.run(probe("compute", batch_size=8, cudnn_benchmark=benchmark))
        assert isinstance(outcome, Measured)
        assert seen == {benchmark}
        assert torch.backends.cudnn.benchmark is not benchmark
    finally:
        torch.backends.cudnn.benchmark = before


def test_constant_readings_do_not_lead_beyond_the_data_or_the_cap() -> None:
    """A flat line through readings of memory proposes no more rows than there are, or than are allowed.

    Report: ultralytics/yolov5#9156.
    """
    net = Net()
    assert largest(net, rows(300)).batch_size == 300 == max(net.rows)
    assert largest(net, rows(300), max_batch_size=40).batch_size == 40


class Objects(Dataset[Any]):
    """Images with 0 to 100 objects each."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> Any:
        count = index * 7919 % 101
        return torch.full((8,), float(index % 5)), torch.zeros(count, 5)


def joined(samples: list[Any]) -> Any:
    images = torch.stack([image for image, _ in samples])
    objects = [torch.cat([torch.full((len(rows), 1), float(n)), rows], 1) for n, (_, rows) in enumerate(samples)]
    return images, torch.cat(objects)


class Detector(nn.Module):
    """Out of memory above 400 objects a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, images: torch.Tensor, objects: torch.Tensor) -> torch.Tensor:
        if len(objects) > 400:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.layer(images)


def test_a_size_is_right_for_the_batch_with_the_most_objects() -> None:
    """0 to 100 objects an image, room for 400: whole epochs of the loader pass at the size returned.

    Report: ultralytics/ultralytics#17514.
    """
    model = Detector()
    result = largest(
        model,
        Objects(),
        loss_fn=None,
        collate_fn=joined,
        base_batch_size=2,
        training_step=lambda model, batch: model(*batch).square().mean(),
    )
    assert 1 <= result.batch_size <= 4
    data = LoaderParts.of(Objects(), collate_fn=joined)
    loader = build_loader(data, Settings(batch_size=result.batch_size), has_batch_norm=False)
    with torch.no_grad():
        assert sum(len(model(*batch)) for batch in loader) == 512
