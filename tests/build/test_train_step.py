"""The train step: accumulation, precision order, scheduler, warm-up, state."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, StepLR

from autotune.build.rate import WINDOW_CALLS, SlowTrainingWarning
from autotune.build.train_step import TrainStep
from autotune.errors import TaskError
from autotune.settings import Settings
from autotune.task import StepLoss

FEATURES = 5


class Recording(torch.optim.SGD):
    """SGD that notes, at each step, the gradients and the learning rates it saw."""

    def __init__(self, params: Any, lr: float = 0.0) -> None:
        super().__init__(params, lr=lr)
        self.gradients: list[list[Tensor]] = []
        self.rates: list[list[float]] = []

    def step(self, closure: Any = None) -> Any:
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        self.gradients.append([parameter.grad.to_dense().clone() for parameter in parameters])
        self.rates.append([float(group["lr"]) for group in self.param_groups])
        return super().step(closure)


class Net(nn.Module):
    """Computes in fp32 also under autocast, so that fp16's order of operations can be checked exactly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layers(x)


def rows_of(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, FEATURES, generator=generator), torch.randn(rows, 1, generator=generator)


def batches_of(data: tuple[Tensor, ...], batch_size: int) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(part.split(batch_size) for part in data), strict=True)


def mean_loss(model: nn.Module, batch: Any) -> StepLoss:
    output = model(batch[0])
    return StepLoss(loss=nn.functional.mse_loss(output, batch[1]), output=output)


def sum_loss(model: nn.Module, batch: Any) -> StepLoss:
    return StepLoss(loss=nn.functional.mse_loss(model(batch[0]), batch[1], reduction="sum"))


def make(
    settings: Settings, loss: Callable[..., StepLoss] = mean_loss, lr: float = 0.0, **options: Any
) -> tuple[TrainStep, Recording]:
    model = Net()
    optimizer = Recording(model.parameters(), lr=lr)
    return TrainStep(model, optimizer, loss=loss, settings=settings, device="cpu", **options), optimizer


def large_batch_gradients(
    data: tuple[Tensor, Tensor], loss: Callable[..., StepLoss] = mean_loss, max_norm: float | None = None
) -> list[Tensor]:
    model = Net()
    loss(model, data).loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return [parameter.grad for parameter in model.parameters()]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


CASES = [(70, 8, 4), (64, 8, 4), (70, 32, 1), (33, 8, 4), (37, 6, 2), (5, 8, 4), (7, 1, 3)]


@pytest.mark.parametrize(("samples", "batch_size", "accumulation"), CASES)
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize(("loss", "reduction"), [(mean_loss, "mean"), (sum_loss, "sum")])
def test_accumulated_gradients_equal_those_of_one_large_batch(
    samples: int, batch_size: int, accumulation: int, precision: Any, max_norm: Any, loss: Any, reduction: Any
) -> None:
    """Every group, the short last one included, has the gradient of one batch of all its rows, to 1e-6.

    Reports: huggingface/transformers PR #34191 and #37766, huggingface/accelerate#641.
    """
    data = rows_of(samples)
    settings = Settings(batch_size=batch_size, gradient_accumulation_steps=accumulation, precision=precision)
    step, optimizer = make(settings, loss, reduction=reduction, max_grad_norm=max_norm)
    for batch in batches_of(data, batch_size):
        step(batch)
    step.flush()
    large = list(batches_of(data, batch_size * accumulation))
    assert len(optimizer.gradients) == len(large) == step.optimizer_steps
    for found, group in zip(optimizer.gradients, large, strict=True):
        assert_same(found, large_batch_gradients(group, loss, max_norm))


@pytest.mark.parametrize("weight", [None, 0.0, 7.0])
def test_without_accumulation_the_backward_pass_is_the_plain_one(weight: float | None) -> None:
    """A group of one is its own mean: bit for bit the user's own loop, whatever the weight."""
    step, optimizer = make(
        Settings(batch_size=8), lambda model, batch: StepLoss(loss=mean_loss(model, batch).loss, weight=weight)
    )
    for batch in batches_of(rows_of(21), 8):
        step(batch)
    for found, group in zip(optimizer.gradients, batches_of(rows_of(21), 8), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, large_batch_gradients(group), strict=True))


@given(samples=st.integers(1, 60), batch_size=st.integers(1, 9), accumulation=st.integers(1, 6))
@hypothesis_settings(max_examples=30, deadline=None)
def test_any_division_into_micro_batches_is_exact(samples: int, batch_size: int, accumulation: int) -> None:
    """No combination of sizes changes the gradients."""
    data = rows_of(samples)
    step, optimizer = make(Settings(batch_size=batch_size, gradient_accumulation_steps=accumulation))
    for batch in batches_of(data, batch_size):
        step(batch)
    step.flush()
    for found, group in zip(optimizer.gradients, batches_of(data, batch_size * accumulation), strict=True):
        assert_same(found, large_batch_gradients(group))


@pytest.mark.parametrize("kind", [float, torch.tensor, lambda weight: torch.tensor(int(weight))])
@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
def test_a_returned_weight_replaces_the_rows(kind: Callable[[float], Any], precision: Any) -> None:
    """Means over unequal numbers of tokens add up to the mean over all tokens, also with an empty micro-batch."""
    x, y = rows_of(22)
    mask = (torch.rand(22, 1, generator=torch.Generator().manual_seed(2)) < 0.5).float()
    mask[4:8] = 0

    def masked(model: nn.Module, batch: Any) -> StepLoss:
        error = (model(batch[0]) - batch[1]).square() * batch[2]
        tokens = batch[2].sum()
        return StepLoss(loss=error.sum() / tokens.clamp(min=1), weight=kind(float(tokens)))

    settings = Settings(batch_size=4, gradient_accumulation_steps=4, precision=precision)
    step, optimizer = make(settings, masked)
    for batch in batches_of((x, y, mask), 4):
        step(batch)
    step.flush()
    large = list(batches_of((x, y, mask), 16))
    assert len(optimizer.gradients) == 2
    for found, group in zip(optimizer.gradients, large, strict=True):
        assert_same(found, large_batch_gradients(group, masked))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_an_impossible_weight_is_an_error(weight: float) -> None:
    """A weight that would poison the gradients names its source."""
    step, _ = make(
        Settings(gradient_accumulation_steps=2),
        lambda model, batch: StepLoss(loss=model(batch[0]).sum(), weight=weight),
    )
    with pytest.raises(TaskError, match="weight"):
        step(rows_of(4))


def test_without_flush_the_open_group_goes_on_in_the_next_epoch() -> None:
    """70 rows at 8x4: the nine micro-batches of an epoch leave one, which begins the next epoch's first group."""
    data = rows_of(70)
    step, optimizer = make(Settings(batch_size=8, gradient_accumulation_steps=4))
    for _ in range(2):
        for batch in batches_of(data, 8):
            step(batch)
    assert len(optimizer.gradients) == 4
    rolled = tuple(torch.cat([part[64:], part[:24]]) for part in data)
    assert_same(optimizer.gradients[2], large_batch_gradients(rolled))


def test_flush_closes_the_open_group_once() -> None:
    """A flush with nothing open does nothing, and tells so."""
    step, optimizer = make(Settings(batch_size=8, gradient_accumulation_steps=4))
    step.flush()
    assert (len(optimizer.gradients), step.did_update) == (0, False)
    step(rows_of(8))
    step.flush()
    assert (len(optimizer.gradients), step.did_update) == (1, True)
    step.flush()
    assert (len(optimizer.gradients), step.did_update) == (1, False)


def test_did_update_tells_which_call_stepped() -> None:
    """Only the call that completes a group changes the weights, and leaves no gradients behind."""
    step, _ = make(Settings(batch_size=8, gradient_accumulation_steps=3), lr=0.1)
    told, changed, cleared = [], [], []
    for batch in batches_of(rows_of(48), 8):
        before = step.model.layers[0].weight.detach().clone()
        step(batch)
        told.append(step.did_update)
        changed.append(not torch.equal(before, step.model.layers[0].weight))
        cleared.append(all(parameter.grad is None for parameter in step.model.parameters()))
    assert told == changed == cleared == [False, False, True] * 2


def test_sparse_gradients_are_accumulated_and_rescaled() -> None:
    """``Embedding(sparse=True)`` has the gradients of one large batch, the short group included."""
    indices = torch.randint(0, 9, (11,), generator=torch.Generator().manual_seed(3))

    def loss(model: nn.Module, batch: Tensor) -> StepLoss:
        return StepLoss(loss=model(batch).square().mean())

    table, other = nn.Embedding(9, 3, sparse=True), nn.Embedding(9, 3)
    other.load_state_dict(table.state_dict())
    optimizer = Recording(table.parameters())
    settings = Settings(batch_size=2, gradient_accumulation_steps=4)
    step = TrainStep(table, optimizer, loss=loss, settings=settings, device="cpu")
    for batch in indices.split(2):
        step(batch)
    step.flush()
    for found, group in zip(optimizer.gradients, indices.split(8), strict=True):
        other.zero_grad()
        loss(other, group).loss.backward()
        assert_same(found, [other.weight.grad])


def test_gradients_from_before_do_not_leak_into_the_first_step() -> None:
    """A ``.grad`` left over from a check before training is cleared."""
    data = rows_of(8)
    step, optimizer = make(Settings(batch_size=8))
    step.model(data[0]).sum().backward()
    step(data)
    assert_same(optimizer.gradients[0], large_batch_gradients(data))


def test_a_failing_call_drops_its_group_and_training_goes_on() -> None:
    """After an exception nothing half done remains: the next group is exact."""
    data = rows_of(24)
    fail = [False, True, False, False]

    def sometimes(model: nn.Module, batch: Any) -> StepLoss:
        found = mean_loss(model, batch)
        if fail.pop(0):
            found.loss.backward(retain_graph=True)
            raise MemoryError("no room")
        return found

    step, optimizer = make(Settings(batch_size=8, gradient_accumulation_steps=2), sometimes)
    batches = list(batches_of(data, 8))
    step(batches[0])
    with pytest.raises(MemoryError):
        step(batches[1])
    step(batches[1])
    step(batches[2])
    assert len(optimizer.gradients) == 1
    assert_same(optimizer.gradients[0], large_batch_gradients(tuple(part[8:] for part in data)))


def test_the_loss_returned_is_the_micro_batchs_own_and_detached() -> None:
    """Neither the weighting of accumulation nor fp16's scale shows in it."""
    data = rows_of(8)
    for settings in (
        Settings(batch_size=8),
        Settings(batch_size=8, gradient_accumulation_steps=4),
        Settings(batch_size=8, precision="fp16-mixed"),
    ):
        step, _ = make(settings)
        loss = step(data)
        assert loss.shape == ()
        assert not loss.requires_grad
        torch.testing.assert_close(loss, mean_loss(Net(), data).loss.detach())


def test_nothing_waits_for_the_device() -> None:
    """On the meta device, where reading any value raises, accumulation with weights, clipping and warm-up run."""

    def weighted(model: nn.Module, batch: Any) -> StepLoss:
        found = mean_loss(model, batch)
        return StepLoss(loss=found.loss, weight=batch[1].count_nonzero(), output=found.output)

    model = nn.Linear(FEATURES, 1, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = Settings(batch_size=8, gradient_accumulation_steps=2)
    step = TrainStep(
        model,
        optimizer,
        loss=weighted,
        settings=settings,
        device="meta",
        max_grad_norm=1.0,
        scheduler=StepLR(optimizer, 1),
        lr_factor=4.0,
        warmup_steps=3,
    )
    for batch in batches_of(tuple(part.to("meta") for part in rows_of(21)), 8):
        loss = step(batch)
    step.flush()
    assert step.optimizer_steps == 2
    with pytest.raises(RuntimeError, match="meta"):
        loss.item()


def test_the_scheduler_moves_once_per_optimizer_step() -> None:
    """Ten micro-batches in groups of four: two steps, and a third by ``flush``."""
    model = Net()
    optimizer = Recording(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    settings = Settings(batch_size=2, gradient_accumulation_steps=4)
    step = TrainStep(model, optimizer, loss=mean_loss, settings=settings, device="cpu", scheduler=scheduler)
    for batch in batches_of(rows_of(20), 2):
        step(batch)
    step.flush()
    assert scheduler.last_epoch == 3
    assert [rates[0] for rates in optimizer.rates] == pytest.approx([0.1, 0.05, 0.025])


def test_a_step_that_the_scaler_skips_moves_nothing() -> None:
    """Gradients beyond fp32 under fp16's scale: weights, scheduler and warm-up stay, and it is told."""
    model = Net()
    optimizer = Recording(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1)
    step = TrainStep(
        model,
        optimizer,
        loss=lambda model, batch: StepLoss(loss=model(batch[0]).mean() * batch[1]),
        settings=Settings(precision="fp16-mixed"),
        device="cpu",
        scheduler=scheduler,
    )
    x, _ = rows_of(4)
    before = model.layers[0].weight.detach().clone()
    step((x, torch.tensor(1e38)))
    assert torch.equal(model.layers[0].weight, before)
    assert (step.did_update, step.optimizer_steps, scheduler.last_epoch, optimizer.gradients) == (False, 0, 0, [])
    step((x, torch.tensor(1.0)))
    assert (step.did_update, step.optimizer_steps, scheduler.last_epoch) == (True, 1, 1)


@pytest.mark.parametrize("fused", [False, True])
def test_fp16_with_a_fused_optimizer_trains_alike(fused: bool) -> None:
    """A fused step, which handles the scale itself, neither unscales twice nor hides a skipped step.

    Reports: Lightning-AI/pytorch-lightning#15501, pytorch/pytorch#96755.
    """
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    settings = Settings(batch_size=8, gradient_accumulation_steps=2, precision="fp16-mixed")
    step = TrainStep(model, optimizer, loss=mean_loss, settings=settings, device="cpu", max_grad_norm=0.1)
    plain = Net()
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    for batch in batches_of(rows_of(64), 8):
        step(batch)
    for batch in batches_of(rows_of(64), 16):
        reference.zero_grad()
        mean_loss(plain, batch).loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        reference.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for x, y in batches_of(rows_of(16), 8):
        step((x, y * 1e35))
    assert not step.did_update
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_warm_up_is_exact_and_puts_the_rates_back() -> None:
    """From the unscaled rate linearly to the scaled one, each group by its own, the exact rates in between."""
    model = Net()
    groups = [{"params": model.layers[0].parameters(), "lr": 0.8}, {"params": model.layers[2].parameters(), "lr": 0.4}]
    optimizer = Recording(groups)
    settings = Settings(batch_size=8)
    options = {"settings": settings, "device": "cpu", "lr_factor": 4.0, "warmup_steps": 4}
    step = TrainStep(model, optimizer, loss=mean_loss, **options)
    for batch in batches_of(rows_of(48), 8):
        step(batch)
        assert [group["lr"] for group in optimizer.param_groups] == [0.8, 0.4]
    shares = [0.25, 0.4375, 0.625, 0.8125, 1.0, 1.0]
    assert [rate for rate, _ in optimizer.rates] == pytest.approx([0.8 * share for share in shares])
    assert [rate for _, rate in optimizer.rates] == pytest.approx([0.4 * share for share in shares])


def test_warm_up_multiplies_whatever_the_scheduler_says() -> None:
    """The schedule is the same with and without warm-up; the step sees the product."""
    rates = {}
    for warmup_steps in (0, 3):
        model = Net()
        optimizer = Recording(model.parameters(), lr=0.8)
        scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
        options = {"settings": Settings(batch_size=8), "device": "cpu", "lr_factor": 4.0, "warmup_steps": warmup_steps}
        step = TrainStep(model, optimizer, loss=mean_loss, scheduler=scheduler, **options)
        for batch in batches_of(rows_of(40), 8):
            step(batch)
        rates[warmup_steps] = [rate for (rate,) in optimizer.rates]
        assert scheduler.get_last_lr() == [0.8 / 6]
    products = [rate * share for rate, share in zip(rates[0], [0.25, 0.5, 0.75, 1, 1], strict=True)]
    assert rates[3] == pytest.approx(products)


def test_warm_up_keeps_a_tensor_rate_and_survives_an_error() -> None:
    """A learning rate that is a tensor stays that very tensor, also when the step raises."""
    model = Net()
    rate = torch.tensor(0.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, foreach=False)
    options = {"settings": Settings(batch_size=8), "device": "cpu", "lr_factor": 4.0, "warmup_steps": 4}
    step = TrainStep(model, optimizer, loss=mean_loss, **options)
    step(rows_of(8))
    optimizer.register_step_pre_hook(lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        step(rows_of(8))
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.8)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_there_is_no_warm_up_without_a_larger_rate(factor: float) -> None:
    """A rate that was not raised starts at once."""
    step, optimizer = make(Settings(batch_size=8), lr=0.1, lr_factor=factor, warmup_steps=5)
    step(rows_of(8))
    assert optimizer.rates == [[0.1]]


@pytest.mark.parametrize("precision", ["fp32", "fp16-mixed"])
@pytest.mark.parametrize("calls_before", [3, 4, 6])
def test_a_restored_state_continues_as_if_nothing_happened(precision: Any, calls_before: int) -> None:
    """Saved through a file, also within a group: same gradients, warm-up and scale as without interruption."""
    settings = Settings(batch_size=5, gradient_accumulation_steps=4, precision=precision)
    options = {"lr": 0.3, "lr_factor": 4.0, "warmup_steps": 6}
    batches = list(batches_of(rows_of(58), 5))
    whole, expected = make(settings, **options)
    for batch in batches:
        whole(batch)
    whole.flush()

    first, seen_first = make(settings, **options)
    for batch in batches[:calls_before]:
        first(batch)
    file = io.BytesIO()
    torch.save({"step": first.state_dict(), "model": first.model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second, seen_second = make(settings, **options)
    second.model.load_state_dict(saved["model"])
    second.load_state_dict(saved["step"])
    for batch in batches[calls_before:]:
        second(batch)
    second.flush()

    found = seen_first.gradients + seen_second.gradients
    assert len(found) == len(expected.gradients) == 3
    for a, b in zip(found, expected.gradients, strict=True):
        assert_same(a, b)
    assert seen_first.rates + seen_second.rates == expected.rates
    assert second.optimizer_steps == 3
    assert second.state_dict() == whole.state_dict()


def test_a_state_of_another_model_is_an_error() -> None:
    """Gradients of an open group fit their own parameters only."""
    step, _ = make(Settings(batch_size=8, gradient_accumulation_steps=2))
    step(rows_of(8))
    state = step.state_dict()
    state["group"]["gradients"] = state["group"]["gradients"][1:]
    with pytest.raises(TaskError, match="3 gradients"):
        step.load_state_dict(state)


def test_bf16_runs_the_model_under_autocast() -> None:
    """The forward pass sees bfloat16, weights and gradients stay fp32."""
    model = nn.Linear(FEATURES, 1)
    optimizer = Recording(model.parameters())
    settings = Settings(batch_size=8, precision="bf16-mixed")
    step = TrainStep(model, optimizer, loss=mean_loss_of_float, settings=settings, device="cpu")
    step(rows_of(8))
    assert step.last_output.dtype == torch.bfloat16
    assert optimizer.gradients[0][0].dtype == torch.float32


def mean_loss_of_float(model: nn.Module, batch: Any) -> StepLoss:
    output = model(batch[0])
    return StepLoss(loss=nn.functional.mse_loss(output.float(), batch[1]), output=output)


def test_the_last_output_is_kept_detached() -> None:
    """Accuracy can be computed from it without a second forward pass."""
    data = rows_of(8)
    step, _ = make(Settings(batch_size=8))
    assert step.last_output is None
    step(data)
    assert not step.last_output.requires_grad
    torch.testing.assert_close(step.last_output, Net()(data[0]).detach())


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (nn.Conv2d(3, 2, 3), (4, 3, 8, 8), True),
        (nn.Conv3d(3, 2, 3), (4, 3, 8, 8, 8), False),
        (nn.Flatten(), (4, 3, 8, 8), False),
    ],
    ids=["images", "volumes", "no convolution"],
)
def test_channels_last_is_given_to_images_of_image_models_only(
    model: nn.Module, shape: tuple[int, ...], expected: bool
) -> None:
    """The image changes its layout, a one-dimensional target does not; other models' inputs are left alone.

    Reports: Lornatang/Real_ESRGAN-PyTorch#1.
    """
    seen: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> StepLoss:
        seen.extend(batch)
        return StepLoss(loss=model(batch[0]).mean() + anchor.sum())

    anchor = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([anchor], lr=0.1)
    settings = Settings(batch_size=4, channels_last=True)
    step = TrainStep(model, optimizer, loss=loss, settings=settings, device="cpu")
    x, y = torch.randn(shape), torch.arange(4)
    step((x, y))
    assert seen[1] is y
    assert (seen[0] is x) is not expected
    if expected:
        assert seen[0].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(seen[0], x)


def test_a_loss_from_a_cuda_graph_is_copied() -> None:
    """With reduce-overhead a model that returns its loss returns memory that the next replay overwrites."""
    graph_memory = nn.Parameter(torch.zeros(()))

    def loss(model: nn.Module, batch: Any) -> StepLoss:
        return StepLoss(loss=graph_memory.view(()))

    optimizer = torch.optim.SGD([graph_memory], lr=1.0)
    addresses = {}
    for mode in (None, "reduce-overhead"):
        settings = Settings(batch_size=4, compile_mode=mode)
        step = TrainStep(nn.Linear(1, 1), optimizer, loss=loss, settings=settings, device="cpu")
        addresses[mode] = step(rows_of(4)).data_ptr()
    assert addresses[None] == graph_memory.data_ptr() != addresses["reduce-overhead"]


def test_the_rate_is_the_clocks_and_warns_once() -> None:
    """The step counts rows against its clock, and says once that training stays slower than promised."""
    now = [0.0]
    step, _ = make(Settings(batch_size=4), promised_samples_per_s=100.0, clock=lambda: now[0])
    batch = rows_of(4)

    def run(calls: int) -> None:
        for _ in range(calls):
            now[0] += 0.5
            step(batch)

    run(3 * WINDOW_CALLS)
    assert step.samples_per_s == pytest.approx(8.0)
    step.flush()
    now[0] += 500
    run(1)
    assert step.samples_per_s == pytest.approx(8.0)
    with pytest.warns(SlowTrainingWarning) as caught:
        run(1)
    assert len(caught) == 1
    run(4 * WINDOW_CALLS)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    """LBFGS evaluates a batch several times per step: said before training starts."""
    model = Net()
    with pytest.raises(TaskError, match="closure"):
        TrainStep(model, torch.optim.LBFGS(model.parameters()), loss=mean_loss, settings=Settings(), device="cpu")


def test_a_scheduler_of_another_optimizer_is_refused() -> None:
    """It would move rates that nobody uses."""
    model = Net()
    optimizer, other = Recording(model.parameters(), lr=0.1), Recording(Net().parameters(), lr=0.1)
    with pytest.raises(TaskError, match="another optimizer"):
        TrainStep(
            model, optimizer, loss=mean_loss, settings=Settings(), device="cpu", scheduler=StepLR(other, step_size=1)
        )


def test_time_first_batches_weigh_by_their_rows() -> None:
    """Sequences of 50 and 10 steps with 8 rows each count the same; the short last batch by its rows."""
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, 2)
    shapes = [(50, 8), (10, 8), (20, 3)]
    batches = [(torch.randn(steps, rows, FEATURES), torch.arange(rows) % 2) for steps, rows in shapes]

    def loss(model: nn.Module, batch: Any) -> StepLoss:
        return StepLoss(loss=nn.functional.cross_entropy(model(batch[0]).mean(0), batch[1]))

    whole = sum(loss(model, batch).loss * len(batch[1]) for batch in batches) / (8 + 8 + 3)
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    optimizer = Recording(model.parameters())
    settings = Settings(batch_size=8, gradient_accumulation_steps=3)
    step = TrainStep(model, optimizer, loss=loss, settings=settings, device="cpu")
    for batch in batches:
        step(batch)
    torch.testing.assert_close(optimizer.gradients[0], list(wanted))
