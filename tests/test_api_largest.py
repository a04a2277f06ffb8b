"""``largest_batch()`` on real tasks: known limits in this process, real memory in a process of its own."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autotune import Settings, largest_batch
from autotune.api.largest import _cap
from autotune.batch_size import LargestBatch
from autotune.errors import DoesNotFitError, SettingsError, TaskError
from autotune.hardware import Hardware, Limits
from autotune.report.progress import Progress

HOST = Hardware.detect(device="cpu")


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> Iterator[None]:
    """Each run collects garbage; what the test session holds need not be looked through each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Net(nn.Module):
    """A small network that raises ``error`` above ``limit`` rows, and keeps what it saw."""

    def __init__(self, limit: int = 10**9, error: Callable[[], Exception] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        self.limit, self.error = limit, error
        self.rows: list[int] = []
        self.backwards = 0
        self.layers[0].weight.register_hook(self._count)

    def _count(self, _: torch.Tensor) -> None:
        self.backwards += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        if len(x) > self.limit:
            raise self.error()
        return self.layers(x)


def rows(count: int = 4096) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 8, generator=generator), torch.arange(count) % 2)


def in_process(model: Any, dataset: Any = None, **arguments: Any) -> LargestBatch:
    """Without a child: milliseconds a size."""
    usual = {"loss_fn": nn.functional.cross_entropy, "device": "cpu", "isolate": False, "progress": False}
    return largest_batch(model, rows() if dataset is None else dataset, **{**usual, "memory_margin": 0.0, **arguments})


@pytest.mark.parametrize("limit", [1, 2, 32, 37])
def test_the_largest_size_that_fits_is_found(limit: int) -> None:
    """Out of memory above 1, 2, 32 and 37 rows: exactly these, each really run forward and backward.

    Reports: Lightning-AI/pytorch-lightning#13851, deepspeedai/DeepSpeed#2160.
    """
    net = Net(limit)
    result = in_process(net)
    assert result.batch_size == limit
    measured = [one for one in result.evidence if one.fits]
    assert {one.size for one in result.evidence} <= set(net.rows)
    assert net.backwards == sum(one.steps for one in measured)
    assert result.reason.startswith("memory")


def test_errors_without_a_message_are_memory_too() -> None:
    """torch.OutOfMemoryError() and one with a number in place of text, and a C++ allocator's.

    Reports: ultralytics/ultralytics#3827, NVIDIA/MinkowskiEngine#359.
    """
    for error in (torch.OutOfMemoryError, lambda: torch.OutOfMemoryError(7), lambda: MemoryError("std::bad_alloc")):
        assert in_process(Net(16, error)).batch_size == 16


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_the_data_bounds_the_size(count: int) -> None:
    """Everything fits: all samples, no more, and the reason says so.

    Reports: Lightning-AI/pytorch-lightning#3259, ludwig-ai/ludwig#3481.
    """
    net = Net()
    result = in_process(net, rows(count))
    assert result.batch_size == count == max(net.rows)
    assert "the data has only" in result.reason


def test_max_batch_size_bounds_the_size() -> None:
    """The caller's bound is kept, also by what is only looked at.

    Report: Lightning-AI/pytorch-lightning#20364.
    """
    net = Net()
    result = in_process(net, max_batch_size=50)
    assert result.batch_size == 50 == max(net.rows)
    assert result.reason == "max_batch_size=50"


def test_a_refusal_of_the_backend_is_recorded_as_not_memory() -> None:
    """cuDNN's NOT_SUPPORTED above 24 rows: at most 24, and why.

    Report: pytorch/pytorch#1059.
    """
    result = in_process(Net(24, lambda: RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")))
    assert result.batch_size == 24
    assert result.reason.startswith("not memory: batch 25 fails: RuntimeError: CUDNN_STATUS_NOT_SUPPORTED")
    assert result.out_of_memory_probes == 0


def test_nothing_fits_is_an_error_that_quotes_the_failure() -> None:
    """Not one row: no default, and the weights are as they were.

    Reports: huggingface/accelerate#332, ultralytics/ultralytics#25739.
    """
    net = Net(0, lambda: torch.OutOfMemoryError("tried to allocate 8 GiB"))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(DoesNotFitError, match=r"fits in memory.* tried to allocate 8 GiB"):
        in_process(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_an_error_at_every_size_comes_through_with_its_traceback() -> None:
    """The user's own mistake is not taken for memory."""

    class Broken(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(self.rows) > 1:
                raise ValueError("wrong shape")
            return super().forward(x)

    with pytest.raises(TaskError, match="ValueError: wrong shape") as raised:
        in_process(Broken())
    assert "in forward" in str(raised.value.__cause__)


def test_nothing_of_the_callers_changes() -> None:
    """Weights, gradients, mode and the optimizer's state are as they were; twice gives the same.

    Reports: Lightning-AI/pytorch-lightning#6675, Lightning-AI/pytorch-lightning#9672, fastai/fastai#3185.
    """
    net = Net(37)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    net.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    moments = [value.clone() for state in optimizer.state.values() for value in state.values()]
    assert [in_process(net, optimizer=optimizer).batch_size for _ in range(2)] == [37, 37]
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    after = [value for state in optimizer.state.values() for value in state.values()]
    assert all(map(torch.equal, moments, after))
    assert not net.training


def test_sizes_that_failed_leave_no_tensors() -> None:
    """The failing batch and its activations are gone, and nothing adds up over searches.

    Report: pykeen/pykeen#151.
    """
    in_process(Net(37))
    gc.collect()
    before = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
    in_process(Net(37))
    gc.collect()
    assert sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects()) <= before + 5


def test_a_stream_ends_where_its_samples_do() -> None:
    """150 samples of a stream of unknown length: 150 was really run, so 150 is what is returned."""

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from rows(150)

    result = in_process(Net(), Stream())
    assert result.batch_size == 150
    assert result.reason == "the data gives no more than 150 samples"


def test_settings_are_the_callers_and_their_size_is_the_start() -> None:
    """Two micro-batches a step, and eight rows first for a start at 64."""
    net = Net(100)
    settings = Settings(batch_size=64, gradient_accumulation_steps=2)
    result = in_process(net, settings=settings)
    assert result.batch_size == 100
    assert result.evidence[0].size == 8
    assert net.backwards == 2 * sum(one.steps for one in result.evidence if one.fits)


def test_batches_that_are_the_users_own_are_refused() -> None:
    """A batch sampler decides the size: the error says what to pass."""
    loader = DataLoader(rows(), batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(SettingsError, match="Pass the dataset itself"):
        in_process(Net(), loader)


@pytest.mark.parametrize(
    "wrong", [{"settings": {"batch_size": 3}}, {"memory_margin": 1.0}, {"max_batch_size": 0}, {"time_budget_s": 0}]
)
def test_arguments_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is run, naming the argument."""
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        in_process(Net(), **wrong)


def test_each_size_is_told() -> None:
    """A callable gets a sentence for each run."""
    said: list[Progress] = []
    result = in_process(Net(37), progress=said.append)
    messages = [event.message for event in said if event.phase == "largest batch"]
    assert len(messages) == result.probes
    assert any("out of memory" in message for message in messages)
    assert any("fits" in message for message in messages)


def test_data_in_memory_bounds_the_size() -> None:
    """Rows of 1 MB and 64 MB of RAM: 32 rows at most, and less with workers that load ahead.

    Reports: ludwig-ai/ludwig#2455, Lightning-AI/pytorch-lightning#11295.
    """
    facts: Any = type("Facts", (), {"sample_bytes": 10**6, "samples": 10**6})
    limits = Limits(ram_bytes=64 * 10**6, shm_bytes=None, open_files=None)
    size, reason = _cap(facts, Settings(), limits, None, on_cpu=True)
    assert (size, "RAM" in reason) == (32, True)
    assert _cap(facts, Settings().replace(num_workers=2), limits, None, on_cpu=True)[0] == 4
    shared = dataclasses.replace(limits, shm_bytes=6 * 10**6)
    size, reason = _cap(facts, Settings().replace(num_workers=1), shared, None, on_cpu=True)
    assert (size, "/dev/shm" in reason) == (1, True)


def test_cpus_are_not_asked_for_absurd_sizes() -> None:
    """A million tiny rows: a default ceiling that the caller can lift.

    Report: Lightning-AI/pytorch-lightning#20364.
    """
    facts: Any = type("Facts", (), {"sample_bytes": 4, "samples": 10**6})
    limits = Limits(ram_bytes=2**34, shm_bytes=None, open_files=None)
    size, reason = _cap(facts, Settings(), limits, None, on_cpu=True)
    assert (size, "max_batch_size" in reason) == (2**14, True)
    assert _cap(facts, Settings(), limits, 2**15, on_cpu=True)[0] == 2**15


class Wide(nn.Module):
    """Keeps 1 MiB a row for the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.layer(x).repeat(1, 2**16)
        return torch.sigmoid(torch.sigmoid(wide))[:, :2]


@pytest.mark.slow
def test_real_memory_is_filled_as_far_as_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process with 1.3 GB: found by a line, run again in a fresh process, within the margin of what there is.

    Report: ludwig-ai/ludwig#3958.
    """
    hardware = dataclasses.replace(HOST, ram_available_bytes=1_500_000_000)
    result = largest_batch(
        Wide(),
        rows(100_000),
        loss_fn=nn.functional.cross_entropy,
        device="cpu",
        hardware=hardware,
        max_batch_size=50_000,
        progress=False,
    )
    final = result.evidence[-1]
    assert final.peak_bytes is not None
    assert 0.75 * Limits.of(hardware).ram_bytes <= final.peak_bytes <= 0.95 * Limits.of(hardware).ram_bytes
    assert result.reason.startswith("memory")
    assert result.probes <= 8
    assert result.out_of_memory_probes <= 2


class Heavy(Dataset[Any]):
    """Rows of 1 MB."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(250_000), 0


def test_heavy_rows_stay_within_memory() -> None:
    """The batch itself is what fills 400 MB: half of that is offered to it.

    Report: ludwig-ai/ludwig#2455.
    """
    hardware = dataclasses.replace(HOST, ram_available_bytes=400_000_000)
    model = nn.Sequential(nn.Flatten(), nn.Linear(250_000, 2))
    result = in_process(model, Heavy(), hardware=hardware, max_batch_size=64)
    assert result.batch_size <= 64
    assert result.batch_size * 10**6 <= 0.5 * Limits.of(hardware).ram_bytes
