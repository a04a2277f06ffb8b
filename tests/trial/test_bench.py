"""The bench on small real tasks: every kind of probe, every kind of failure."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autotune.errors import DoesNotFitError, TaskError
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe, Rejected
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench
from autotune.trial.numerics import NumericsResult


class Net(nn.Module):
    """Logs the rows of every forward pass; fails above ``limit`` rows."""

    def __init__(self, limit: int = 10**9, error: BaseException | None = None) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.limit, self.error = limit, error
        self.rows: list[int] = []
        self.backwards = 0
        self.layer.weight.register_hook(self._count)

    def _count(self, _: torch.Tensor) -> None:
        self.backwards += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        if len(x) > self.limit:
            raise self.error or torch.OutOfMemoryError("CUDA out of memory.")
        return self.layer(x)


def _dataset(samples: int = 512) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(samples, 8, generator=generator), torch.arange(samples) % 2)


@pytest.fixture
def bench() -> Iterator[Any]:
    """Makes benches and closes them."""
    made: list[Bench] = []
    hardware = Hardware.detect()

    def make(model: Any, dataset: Any, *, copies: bool = True, **arguments: Any) -> Bench:
        task = Task(model, dataset, **{"loss_fn": nn.CrossEntropyLoss(), "device": "cpu", **arguments})
        fresh = (lambda: Task(type(model)(), dataset)) if copies and isinstance(model, Net) else None
        made.append(Bench(task, hardware, Limits.of(hardware), fresh=fresh))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _probe(kind: Any = "joint", window_s: float = 0.05, **knobs: Any) -> Probe:
    return Probe(kind=kind, settings=Settings().replace(**knobs), window_s=window_s)


def _measured(outcome: Outcome) -> Measured:
    assert isinstance(outcome, Measured), outcome
    return outcome


def test_a_joint_trial_takes_real_steps_of_the_size_it_reports(bench: Any) -> None:
    """The model saw batches of 16, forward and backward, and the outcome says 16."""
    net = Net()
    outcome = _measured(bench(net, _dataset()).run(_probe(batch_size=16)))
    assert outcome.largest_batch_rows == 16
    assert net.rows.count(16) >= 4
    assert net.backwards >= net.rows.count(16)
    assert outcome.samples_per_s > 0


def test_a_joint_trial_with_workers_measures_whole_rounds(bench: Any) -> None:
    """Two workers: every raw sample holds two batches, and no worker is left.

    Report: ultralytics/ultralytics#25024.
    """
    outcome = _measured(bench(Net(), _dataset(4096)).run(_probe(batch_size=4, num_workers=2)))
    assert {chunk.rows for chunk in outcome.chunks} == {8}
    assert outcome.epoch_turn_s > 0
    assert not torch.multiprocessing.active_children()


def test_trials_start_from_the_same_weights(bench: Any) -> None:
    """Nothing learned in one trial flatters the next."""
    one = bench(Net(), _dataset(), optimizer=lambda params: torch.optim.SGD(params, lr=10.0))
    first, second = (_measured(one.run(_probe("compute", batch_size=64))) for _ in range(2))
    assert first.first_loss == second.first_loss


def test_laps_keep_their_objects_and_joint_trials_do_not(bench: Any) -> None:
    """The second lap of a setting has no start; a joint trial ends the residents."""
    one = bench(Net(), _dataset(100_000))
    fast, slow = _probe("lap", batch_size=8, num_workers=1), _probe("lap", batch_size=16)
    first = _measured(one.run(fast))
    assert first.start_s > 0
    assert first.resident
    assert _measured(one.run(slow)).samples_per_s > 0
    assert _measured(one.run(fast)).start_s == 0
    assert len(torch.multiprocessing.active_children()) == 1
    one.run(_probe(batch_size=8))
    assert not torch.multiprocessing.active_children()


def test_laps_without_a_second_model_are_rebuilt(bench: Any) -> None:
    """One model cannot be resident twice: laps alternate all the same."""
    one = bench(Net(), _dataset(), copies=False)
    for _ in range(2):
        for size in (8, 16):
            lap = _measured(one.run(_probe("lap", batch_size=size)))
            assert lap.largest_batch_rows == size
            assert not lap.resident


def test_out_of_memory_is_an_outcome_and_ends_a_cpu_process(bench: Any) -> None:
    """The size is not measured, the message is kept, the process is not to be used again."""
    one = bench(Net(limit=32), _dataset())
    outcome = one.run(_probe(batch_size=64))
    assert isinstance(outcome, OutOfMemory)
    assert "out of memory" in outcome.message
    assert one.poisoned


def test_an_error_of_the_users_code_comes_through_as_itself(bench: Any) -> None:
    """Type, message and traceback; it is not taken for memory."""
    one = bench(Net(limit=32, error=RuntimeError("shapes cannot be multiplied")), _dataset())
    outcome = one.run(_probe(batch_size=64))
    assert isinstance(outcome, Rejected)
    assert outcome.error_type == "builtins.RuntimeError"
    assert "shapes cannot be multiplied" in outcome.reason
    assert "in forward" in (outcome.traceback or "")
    assert not one.poisoned
    _measured(one.run(_probe(batch_size=16)))


def test_a_failed_trial_keeps_no_tensor_alive(bench: Any) -> None:
    """The traceback's frames would hold the failing batch; they are cleared before the next trial.

    Reports: pytorch/pytorch#27600, pytorch/pytorch#18853.
    """
    seen: list[weakref.ref[torch.Tensor]] = []

    class Failing(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            big = x * 2
            if len(x) == 64:
                seen.append(weakref.ref(big))
                raise torch.OutOfMemoryError("no")
            return self.layer(big)

    one = bench(Failing(), _dataset(), copies=False)
    outcome = one.run(_probe(batch_size=64))
    gc.collect()
    assert isinstance(outcome, OutOfMemory)
    assert [ref() for ref in seen] == [None]


def test_a_loss_that_is_not_finite_is_rejected(bench: Any) -> None:
    """A diverged window says nothing about training."""
    one = bench(Net(), _dataset(), loss_fn=lambda output, target: output.sum() * float("nan"))
    outcome = one.run(_probe(batch_size=16))
    assert isinstance(outcome, Rejected)
    assert outcome.phase == "numerics"


def test_a_compute_probe_reads_the_loader_once_only(bench: Any) -> None:
    """The step runs on a cached batch: the data is not what limits it."""
    reads: list[int] = []

    class Counted(Dataset[Any]):
        def __len__(self) -> int:
            return 512

        def __getitem__(self, index: int) -> Any:
            reads.append(index)
            return torch.zeros(8), 0

    one = bench(Net(), Counted())
    one.describe()
    reads.clear()
    outcome = _measured(one.run(_probe("compute", batch_size=32)))
    assert len(reads) == 32
    assert outcome.steps > 2


@pytest.mark.parametrize(("steps", "accumulation"), [(1, 1), (2, 1), (5, 1), (2, 3)])
def test_a_number_of_steps_is_kept_exactly(bench: Any, steps: int, accumulation: int) -> None:
    """Whole optimizer steps, forward and backward; the first of several is not timed."""
    net = Net()
    one = bench(net, _dataset(), copies=False)
    settings = Settings(batch_size=32, gradient_accumulation_steps=accumulation)
    outcome = _measured(one.run(Probe(kind="compute", settings=settings, steps=steps)))
    assert (outcome.steps, len(outcome.chunks)) == (steps, max(1, steps - 1))
    assert net.backwards == steps * accumulation == net.rows.count(32)
    assert outcome.largest_batch_rows == 32


def test_steps_report_the_peak_in_between(bench: Any) -> None:
    """Activations that are gone at the end of each step are in the peak."""

    class Wide(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).repeat(1, 2**20).sigmoid()[:, :2]

    one = bench(Wide(), _dataset(), copies=False)
    peaks = [
        _measured(one.run(Probe(kind="compute", settings=Settings(batch_size=rows), steps=2))).peak_ram_bytes
        for rows in (1, 16)
    ]
    assert None not in peaks
    assert peaks[1] - peaks[0] > 200 * 2**20


def test_fewer_rows_than_asked_for_are_reported(bench: Any) -> None:
    """Ten samples cannot make a batch of 64: the outcome says ten."""
    outcome = _measured(
        bench(Net(), _dataset(10)).run(Probe(kind="compute", settings=Settings(batch_size=64), steps=2))
    )
    assert outcome.largest_batch_rows == 10


def test_one_model_survives_a_step_that_fails(bench: Any) -> None:
    """Without a second copy the model goes on after a size that is too large."""
    one = bench(Net(limit=32), _dataset(), copies=False)
    large, small = (Probe(kind="compute", settings=Settings(batch_size=rows), steps=2) for rows in (64, 32))
    assert isinstance(one.run(large), OutOfMemory)
    _measured(one.run(small))


def test_a_backends_size_limit_is_told_apart(bench: Any) -> None:
    """Rejected, as not memory, and marked as a matter of size."""
    one = bench(Net(limit=32, error=RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")), _dataset(), copies=False)
    outcome = one.run(_probe("compute", batch_size=64))
    assert isinstance(outcome, Rejected)
    assert outcome.size_limit


@pytest.mark.parametrize("limit", [1, 3])
def test_a_task_is_described_by_as_many_rows_as_fit(bench: Any, limit: int) -> None:
    """Eight rows do not fit: fewer do."""
    net = Net(limit=limit)
    assert bench(net, _dataset(), copies=False).describe().samples == 512
    assert net.rows[0] == 8


def test_a_task_of_which_no_row_fits_is_a_matter_of_memory(bench: Any) -> None:
    """Not a mistake in the task."""
    with pytest.raises(DoesNotFitError, match="Not even the smallest batch fits in memory"):
        bench(Net(limit=0), _dataset(), copies=False).describe()


@pytest.mark.parametrize("precision", ["fp32", "bf16-mixed"])
def test_a_numerics_probe_compares_with_fp32(bench: Any, precision: str) -> None:
    """fp32 agrees with itself exactly; bf16 within its rounding, followed over real steps."""
    outcome = _measured(bench(Net(), _dataset()).run(_probe("numerics", window_s=2.0, precision=precision)))
    assert outcome.loss_error is not None
    assert outcome.loss_error <= (0.0 if precision == "fp32" else 3e-2)
    assert (outcome.drift_steps > 0) == (precision != "fp32")


def test_compiled_settings_are_compared_with_eager_ones_on_a_batch_of_their_own(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another batch size would be compiled anew; fp32 is what the eager settings are compared with in their turn."""
    one, seen = bench(Net(), _dataset()), []
    one.describe()
    result = NumericsResult(1.0, True, ())
    monkeypatch.setattr(
        one, "_losses", lambda settings, batches, *_: seen.append((settings, len(batches[0][0]))) or result
    )
    one.run(_probe("numerics", batch_size=96, precision="bf16-mixed", compile_mode="default"))
    eager, compiled = seen
    assert (eager[0].compile_mode, eager[0].precision, eager[1]) == (None, "bf16-mixed", 96)
    assert (compiled[0].compile_mode, compiled[1]) == ("default", 96)


def test_a_numerics_probe_sees_a_precision_that_breaks_the_loss(bench: Any) -> None:
    """Inputs of 1e6 overflow in fp16: no finite error is reported (pytorch/pytorch#40497)."""
    data = TensorDataset(torch.full((64, 8), 1e6), torch.zeros(64, dtype=torch.long))
    one = bench(Net(), data)
    outcome = one.run(_probe("numerics", window_s=2.0, precision="fp16-mixed"))
    assert outcome.fate == "rejected" or _measured(outcome).loss_error is None


class _Prefetching(Dataset[Any]):
    """Starts a thread of its own when it is first read."""

    def __init__(self) -> None:
        self.made: Any = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        if self.made is None:
            self.made = queue.Queue(2)
            self.thread = threading.Thread(target=self._fill, daemon=True)
            self.thread.start()
        return self.made.get(timeout=20), index % 2

    def _fill(self) -> None:
        while True:
            self.made.put(torch.randn(8))


def test_workers_get_no_copy_of_a_thread_that_was_started_here() -> None:
    """Reading a first batch here must not make workers wait for a thread that no fork takes along."""

    def task() -> Task:
        return Task(Net(), _Prefetching(), loss_fn=nn.CrossEntropyLoss(), device="cpu")

    hardware = Hardware.detect(device="cpu")
    one = Bench(task(), hardware, Limits.of(hardware), fresh=task)
    one.describe()
    _measured(one.run(_probe(batch_size=4)))
    outcome = one.run(_probe(batch_size=4, num_workers=1))
    one.close()
    _measured(outcome)


class _LossInTrainingOnly(nn.Module):
    """Like a detector: its loss in training mode, predictions in eval mode; dropout of each kind inside."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.rnn = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        rows = self.rnn(self.drop(x)[:, None])[0]
        scores = self.head(self.attention(rows, rows, rows)[0][:, 0])
        return {"loss": nn.functional.cross_entropy(scores, labels)} if self.training else [scores.argmax(1)]


def test_a_model_without_a_loss_in_eval_mode_is_compared_in_training_mode(bench: Any) -> None:
    """Else no detector could change its precision, memory format or compilation; dropout is off there, too."""
    data = [dict(zip(("x", "labels"), row, strict=True)) for row in _dataset(64)]
    model = _LossInTrainingOnly()
    one = bench(model, data, copies=False, loss_fn=None)
    one.describe()
    outcome = _measured(one.run(_probe("numerics", window_s=2.0)))
    assert outcome.loss_error == 0.0
    assert (model.rnn.dropout, model.attention.dropout) == (0.5, 0.5)


def test_a_comparison_of_numbers_leaves_dropout_in_recurrent_layers(bench: Any) -> None:
    """Without isolation they are the caller's own; with it, later trials train without it."""
    model = nn.LSTM(8, 8, num_layers=2, dropout=0.5)

    def step(module: nn.Module, batch: Any) -> torch.Tensor:
        return module(batch[0])[0].square().mean()

    one = bench(model, _dataset(64), copies=False, loss_fn=None, training_step=step)
    outcome = _measured(one.run(_probe("numerics", window_s=2.0)))
    assert outcome.loss_error == 0.0
    assert model.dropout == 0.5


def test_process_wide_switches_are_put_back_after_a_trial(bench: Any) -> None:
    """A trial with one thread leaves the thread count of the process.

    Report: kazuto1011/deeplab-pytorch#74.
    """
    before = torch.get_num_threads()
    _measured(bench(Net(), _dataset()).run(_probe(num_threads=1)))
    assert torch.get_num_threads() == before


def test_a_stream_is_measured_without_a_length(bench: Any) -> None:
    """No epoch length, no sampler: the window's rate is the rate.

    Report: Project-MONAI/MONAI#3195.
    """

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(64):
                yield torch.zeros(8), 0

    one = bench(Net(), Stream())
    facts = one.describe()
    outcome = _measured(one.run(_probe(batch_size=8)))
    assert (facts.iterable, outcome.epoch_rows) == (True, None)


def test_the_users_own_batches_are_measured_as_they_are(bench: Any) -> None:
    """A custom batch sampler decides the rows."""
    sampler = [[0, 1, 2], [3, 4, 5, 6], [7]] * 20
    net = Net()
    outcome = _measured(bench(net, DataLoader(_dataset(), batch_sampler=sampler)).run(_probe(batch_size=None)))
    assert set(net.rows) <= {1, 3, 4}
    assert outcome.largest_batch_rows in (3, 4)


def test_short_data_is_measured_over_whole_epochs(bench: Any) -> None:
    """Ten rows at batch 64: every chunk is an epoch, no batch is empty."""
    net = Net()
    outcome = _measured(bench(net, _dataset(10)).run(_probe(batch_size=64)))
    assert set(net.rows) - {8} == {10}
    assert outcome.epoch_turn_s == 0


def test_ragged_samples_are_the_users_error_with_the_remedy(bench: Any) -> None:
    """The message names collate_fn, and it is no memory failure.

    Report: milesial/Pytorch-UNet#285.
    """

    class Ragged(Dataset[Any]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return torch.zeros(index + 1), 0

    with pytest.raises(TaskError, match="collate_fn"):
        bench(Net(), Ragged(), base_batch_size=4).describe()


class Files(Dataset[Any]):
    """Samples of 256 KiB in files."""

    def __init__(self, folder: Any) -> None:
        self.paths = [folder / f"{number}.bin" for number in range(8)]
        for path in self.paths:
            path.write_bytes(bytes(2**18))

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        read = self.paths[index % 8].read_bytes()
        return torch.full((8,), float(read[0])), index % 2


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux says what a process has read")
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_window_reads_from_files_is_noted(bench: Any, tmp_path: Path, workers: int) -> None:
    """Samples of 256 KiB, whoever reads them; little of it from storage, since they were just written."""
    outcome = bench(Net(), Files(tmp_path)).run(_probe(window_s=0.3, batch_size=8, num_workers=workers))
    assert isinstance(outcome, Measured)
    assert outcome.read_bytes is not None
    assert outcome.fetched_bytes is not None
    rows = sum(chunk.rows for chunk in outcome.chunks)
    assert outcome.read_bytes > rows * 2**18 / 4  # workers may have read a part ahead of the window
    assert outcome.fetched_bytes < outcome.read_bytes / 2


class Hungry(Net):
    """Holds 4 MiB a row from forward to backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.ones(len(x), 2**20).requires_grad_() * 2
        return self.layer(x) + held.mean() * 0


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux keeps a mark of the highest memory")
def test_a_joint_trials_peak_holds_its_activations(bench: Any) -> None:
    """64 rows need 256 MiB that are gone when the window ends; 4 rows need 16."""
    desk = bench(Hungry(), _dataset())
    small, large = (_measured(desk.run(_probe(batch_size=size))).peak_ram_bytes or 0 for size in (4, 64))
    assert large - small >= 150 * 2**20


class OpenedLate(Dataset[Any]):
    """Opens its file when it is first read, as is right: each worker then has its own."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, None

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file, self.opened_by = self.path.open("rb"), os.getpid()
        if self.opened_by != os.getpid():
            raise RuntimeError("a forked worker reads from the file of its parent")
        self.file.seek(index)
        return torch.full((8,), float(self.file.read(1)[0])), index % 2

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "file": None}

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


def test_workers_do_not_inherit_the_files_that_trials_without_workers_opened(tmp_path: Path) -> None:
    """Read in-process first, then in workers, then in-process again."""
    (tmp_path / "data").write_bytes(bytes(256))
    made = [Task(Net(), OpenedLate(tmp_path / "data"), loss_fn=nn.CrossEntropyLoss(), device="cpu")]
    hardware = Hardware.detect()

    def fresh() -> Task:
        made.append(pickle.loads(pickle.dumps(made[0])))
        return made[-1]

    desk = Bench(made[0], hardware, Limits.of(hardware), fresh=fresh)
    try:
        for workers in (0, 2, 0):
            _measured(desk.run(_probe(batch_size=8, num_workers=workers)))
    finally:
        desk.close()
