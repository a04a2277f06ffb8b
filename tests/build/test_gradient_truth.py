"""Micro-batches times accumulation give the gradient of one large batch, for any shapes, loss and clipping.

Reports: huggingface/transformers PR #34191 and #37766, huggingface/accelerate#641, ultralytics/yolov5#1630.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from autotune.build.train_step import TrainStep
from autotune.settings import Settings
from autotune.task import StepLoss

_PADDING = -100
_Loss = Callable[[nn.Module, Any], StepLoss]


@dataclasses.dataclass(frozen=True)
class Case:
    """Shapes and sizes of one training step; the data come from ``seed``."""

    samples: int
    batch: int
    accumulation: int
    width: int
    hidden: int
    classes: int
    tokens: int
    max_norm: float | None
    seed: int

    def data(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs (samples, tokens, width) and classes, some of them padding; some rows are padding all over."""
        source = torch.Generator().manual_seed(self.seed)
        inputs = torch.randn(self.samples, self.tokens, self.width, generator=source, dtype=torch.float64)
        classes = torch.randint(self.classes, (self.samples, self.tokens), generator=source)
        length = torch.randint(0, self.tokens + 1, (self.samples, 1), generator=source)
        return inputs.to(dtype), classes.where(torch.arange(self.tokens) < length, _PADDING)

    def model(self, dtype: torch.dtype, *, batch_norm: bool = False) -> nn.Module:
        """Always of the same weights."""
        torch.manual_seed(self.seed)
        norm = nn.BatchNorm1d(self.tokens) if batch_norm else nn.Identity()
        layers = nn.Sequential(
            nn.Linear(self.width, self.hidden), norm, nn.Tanh(), nn.Linear(self.hidden, self.classes, bias=False)
        )
        return layers.to(dtype)


CASES = st.builds(
    Case,
    samples=st.integers(1, 40),
    batch=st.integers(1, 9),
    accumulation=st.integers(1, 6),
    width=st.integers(1, 6),
    hidden=st.integers(2, 8),
    classes=st.integers(2, 5),
    tokens=st.integers(1, 5),
    max_norm=st.sampled_from([None, 1e-3, 0.1, 10.0]),
    seed=st.integers(0, 2**16),
)
_RAGGED = Case(samples=23, batch=4, accumulation=3, width=3, hidden=4, classes=3, tokens=4, max_norm=0.01, seed=1)


def _filled(classes: Tensor) -> Tensor:
    return classes.clamp(min=0)


def _mean(model: nn.Module, batch: Any) -> StepLoss:
    return StepLoss(loss=functional.cross_entropy(model(batch[0]).flatten(0, 1), _filled(batch[1]).flatten()))


def _sum(model: nn.Module, batch: Any) -> StepLoss:
    scores = model(batch[0]).flatten(0, 1)
    return StepLoss(loss=functional.cross_entropy(scores, _filled(batch[1]).flatten(), reduction="sum"))


def _tokens(model: nn.Module, batch: Any) -> StepLoss:
    """The mean over the tokens that are no padding, with their number."""
    scores, classes = model(batch[0]).flatten(0, 1), batch[1].flatten()
    count = int((classes != _PADDING).sum())
    loss = functional.cross_entropy(scores, classes, reduction="sum", ignore_index=_PADDING) / max(1, count)
    return StepLoss(loss=loss, weight=count)


LOSSES: dict[str, tuple[_Loss, Any]] = {"mean": (_mean, "mean"), "sum": (_sum, "sum"), "tokens": (_tokens, "mean")}


def _accumulated(case: Case, batches: list[Any], loss: str, dtype: torch.dtype, **more: Any) -> list[list[Tensor]]:
    """Gradients at each optimizer step."""
    model = case.model(dtype, **more)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[list[Tensor]] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(_gradients(model)))
    function, reduction = LOSSES[loss]
    sizes = {len(batch[0]) for batch in batches[:-1]}
    settings = Settings(
        batch_size=case.batch if sizes <= {case.batch} else None, gradient_accumulation_steps=case.accumulation
    )
    step = TrainStep(
        model,
        optimizer,
        loss=function,
        settings=settings,
        device="cpu",
        reduction=reduction,
        max_grad_norm=case.max_norm,
    )
    for batch in batches:
        step(batch)
    step.flush()
    return seen


def _large(case: Case, batch: Any, loss: str, dtype: torch.dtype, **more: Any) -> list[Tensor]:
    model = case.model(dtype, **more)
    LOSSES[loss][0](model, batch).loss.backward()
    if case.max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), case.max_norm)
    return _gradients(model)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def _groups(batches: list[Any], size: int) -> list[Any]:
    """Each group's micro-batches as one batch."""
    starts = range(0, len(batches), size)
    return [tuple(map(torch.cat, zip(*batches[start : start + size], strict=True))) for start in starts]


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def _largest(gradients: list[Tensor]) -> float:
    return max(float(one.abs().max()) for one in gradients)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Toy models gain nothing from threads and lose much to busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("loss", LOSSES)
@given(case=CASES)
@example(case=_RAGGED)
@hypothesis_settings(max_examples=15, deadline=None)
def test_every_group_has_the_gradient_of_one_large_batch(loss: str, case: Case) -> None:
    """Exact in double precision, the last, short group and clipping included."""
    batches = list(zip(*(part.split(case.batch) for part in case.data(torch.float64)), strict=True))
    found = _accumulated(case, batches, loss, torch.float64)
    groups = _groups(batches, case.accumulation)
    assert len(found) == len(groups)
    for gradients, group in zip(found, groups, strict=True):
        expected = _large(case, group, loss, torch.float64)
        assert _difference(gradients, expected) <= 1e-12 * max(1.0, _largest(expected))


@pytest.mark.parametrize("loss", LOSSES)
@given(case=CASES)
@example(case=_RAGGED)
@hypothesis_settings(max_examples=15, deadline=None, derandomize=True)
def test_in_single_precision_it_agrees_to_a_millionth(loss: str, case: Case) -> None:
    """Of the largest gradient that a micro-batch has: what cancels in their sum keeps its rounding."""
    case = dataclasses.replace(case, max_norm=None)
    batches = list(zip(*(part.split(case.batch) for part in case.data(torch.float32)), strict=True))
    found = _accumulated(case, batches, loss, torch.float32)
    for number, group in enumerate(_groups(batches, case.accumulation)):
        members = batches[number * case.accumulation : (number + 1) * case.accumulation]
        scale = max(1e-2, *(_largest(_large(case, one, loss, torch.float32)) for one in members), 0.0)
        scale *= len(members) if loss == "sum" else 1
        assert _difference(found[number], _large(case, group, loss, torch.float32)) <= 1e-6 * scale


@given(case=CASES, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@example(case=_RAGGED, sizes=[1, 9, 2, 2, 7])
@hypothesis_settings(max_examples=15, deadline=None)
@pytest.mark.parametrize("loss", LOSSES)
def test_batches_of_the_users_own_sizes_count_by_their_rows(loss: str, case: Case, sizes: list[int]) -> None:
    """A batch sampler's uneven batches add up to the large batch as well."""
    case = dataclasses.replace(case, samples=sum(sizes))
    ends = list(itertools.accumulate(sizes))
    inputs, classes = case.data(torch.float64)
    batches = [(inputs[end - size : end], classes[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    found = _accumulated(case, batches, loss, torch.float64)
    for gradients, group in zip(found, _groups(batches, case.accumulation), strict=True):
        expected = _large(case, group, loss, torch.float64)
        assert _difference(gradients, expected) <= 1e-12 * max(1.0, _largest(expected))


def test_batch_norm_is_the_exception_that_the_result_has_to_name() -> None:
    """Its statistics are each micro-batch's own: the gradients differ, and ``changes()`` says so (see its test)."""
    case = dataclasses.replace(_RAGGED, max_norm=None)
    batches = list(zip(*(part.split(case.batch) for part in case.data(torch.float64)), strict=True))
    found = _accumulated(case, batches, "mean", torch.float64, batch_norm=True)
    expected = _large(case, _groups(batches, case.accumulation)[0], "mean", torch.float64, batch_norm=True)
    assert _difference(found[0], expected) > 1e-3 * _largest(expected)
