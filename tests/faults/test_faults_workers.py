"""Workers that die, linger or slow everything down."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from autotune.measurement import Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.planner import CPU, GPU, Found, Plan
from autotune.planner.loader_faults import worker_fault
from autotune.settings import Settings
from autotune.study import Study
from tests.faults.small_task import Net, bench, probe, rows
from tests.planner.fake_machine import FakeMachine, candidates, hardware

ROOT = Path(__file__).parents[2]
HANG_S = 300


class Mortal(Dataset[Any]):
    """Four thousand rows; in a worker ``end`` is called from the first row on."""

    def __init__(self, end: Callable[[], object], count: int = 4096) -> None:
        self.end, self.count = end, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            self.end()
        return torch.zeros(8), index % 2


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bus_error() -> None:
    os.kill(os.getpid(), signal.SIGBUS)


def fails() -> None:
    raise IndexError("row 50 is not there")


def uses_cuda() -> None:
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn.")


def fate_of(end: Callable[[], object], **arguments: Any) -> Outcome:
    """What a trial with one worker comes to where that worker calls ``end``; without workers the data is fine."""
    with contextlib.closing(bench(Net(), Mortal(end), **arguments)) as one:
        assert isinstance(one.run(probe(batch_size=16)), Measured)
        outcome = one.run(probe(batch_size=16, num_workers=1))
        assert not torch.multiprocessing.active_children()
    return outcome


def search_where_workers(outcome: Outcome, *, accelerator: Any = None) -> tuple[Plan, Found, FakeMachine]:
    """A search on a loading-bound machine on which every trial with workers comes to ``outcome``."""
    machine = FakeMachine(
        lambda settings: 100.0 + (settings.batch_size or 0) / 1000,
        fate=lambda asked: _as(outcome, asked) if asked.settings.num_workers else None,
    )
    plan = Plan(
        candidates=candidates(),
        hardware=hardware(8, accelerator),
        pace=GPU if accelerator else CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=120.0,
        started_s=0.0,
    )
    return plan, plan.search(), machine


def _as(outcome: Outcome, asked: Probe) -> Outcome:
    import dataclasses

    return dataclasses.replace(outcome, kind=asked.kind, settings=asked.settings)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (killed, "a worker was killed, most likely for want of memory"),
        (bus_error, "shared memory (/dev/shm) ran out; give it more (docker run --shm-size=8g)"),
        (fails, "IndexError: row 50 is not there"),
        (uses_cuda, "return CPU tensors"),
    ],
)
def test_workers_that_fail_are_left_off_and_the_report_says_why(end: Callable[[], object], says: str) -> None:
    """Killed by the system, ended by a full /dev/shm, or an error of the dataset's that only workers meet.

    Reports: pytorch/pytorch#8976, pytorch/pytorch#5040, deepspeedai/DeepSpeed#4100, pytorch/pytorch#77159.
    """
    outcome = fate_of(end)
    assert not isinstance(outcome, Measured)
    plan, found, machine = search_where_workers(outcome)
    assert found.baseline is not None
    assert all(one.settings.num_workers == 0 for one in found.finalists)
    assert plan.candidates.dropped["num_workers"].startswith("workers do not run here: ")
    assert says in plan.candidates.dropped["num_workers"]
    assert sum(bool(asked.settings.num_workers) for asked in machine.probes) <= 2
    failed = [trial for trial in plan.study.outcomes if trial.settings.num_workers]
    assert failed
    assert all(not isinstance(trial, Measured) for trial in failed)


def test_a_worker_that_never_answers_costs_two_trials() -> None:
    """The first batch never comes: the trial ends at its deadline, and workers are left off with that reason.

    Report: pytorch/pytorch#51344.
    """
    late = TimedOut(kind="joint", settings=Settings().replace(num_workers=1), deadline_s=20.0)
    for accelerator in (None, type("Accelerator", (), {"memory_bytes": None})()):
        plan, found, machine = search_where_workers(late, accelerator=accelerator)
        assert all(one.settings.num_workers == 0 for one in found.finalists)
        assert "no answer within 20 s" in plan.candidates.dropped["num_workers"]
        assert sum(bool(asked.settings.num_workers) for asked in machine.probes) <= 2


def test_one_failure_does_not_condemn_fewer_workers() -> None:
    """Eight workers die where one would do: one is tried, measured, and stays in the search."""
    settings = Settings().replace(num_workers=8)
    message = "RuntimeError: DataLoader worker (pid 1) is killed by signal: Killed. "
    dead = OutOfMemory(kind="joint", settings=settings, where="killed", message=message)
    machine = FakeMachine(
        lambda settings: 200.0 if settings.num_workers else 100.0,
        fate=lambda asked: _as(dead, asked) if asked.settings.num_workers > 4 else None,
    )
    plan = Plan(
        candidates=candidates(),
        hardware=hardware(8),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=120.0,
        started_s=0.0,
    )
    found = plan.search()
    assert found.finalists[0].settings.num_workers in (1, 2, 3, 4)
    assert "num_workers" not in plan.candidates.dropped


@pytest.mark.parametrize(
    "outcome",
    [
        OutOfMemory(kind="joint", settings=Settings().replace(num_workers=2), where="accelerator", message="CUDA OOM"),
        Rejected(kind="joint", settings=Settings().replace(num_workers=2), phase="step", reason="bad shapes"),
        Rejected(kind="joint", settings=Settings(), phase="step", reason="DataLoader worker (pid 1) exited"),
    ],
)
def test_other_failures_are_not_blamed_on_workers(outcome: Outcome) -> None:
    """The device's memory, the model's shapes, and a trial without workers say nothing about workers."""
    assert worker_fault(outcome) is None


def test_workers_that_the_system_does_not_start_are_left_off_with_the_limit_named(monkeypatch: Any) -> None:
    """Few processes allowed (ulimit -u, a container's pids limit): fork refuses, and trials without workers go on."""

    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    made = bench(Net(), rows(64))
    monkeypatch.setattr(os, "fork", refused)
    asked = probe(batch_size=8, num_workers=1, multiprocessing_context="fork")
    said = worker_fault(made.run(asked))
    monkeypatch.undo()
    assert said is not None
    assert "ulimit -u" in said
    assert isinstance(made.run(probe(batch_size=8)), Measured)
    made.close()


def test_twenty_trials_never_keep_more_than_their_own_workers() -> None:
    """Persistent workers of earlier trials are gone before the next one starts, and none is left at the end.

    Reports: pytorch/pytorch#64766, ultralytics/ultralytics#25024.
    """
    most: list[int] = []
    gc.disable()  # ends here do not wait for the collector
    try:
        net = Net(lambda net, x: most.append(len(torch.multiprocessing.active_children())))
        with contextlib.closing(bench(net, rows(256))) as one:
            for number in range(20):
                workers = 1 + number % 2
                outcome = one.run(probe(batch_size=32, num_workers=workers, prefetch_factor=2, window_s=0.0))
                assert isinstance(outcome, Measured), outcome
                assert not torch.multiprocessing.active_children()
    finally:
        gc.enable()
    assert max(most) == 2


_EXIT = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench

torch.set_num_threads(1)
data = TensorDataset(torch.zeros(1_000_000, 2), torch.zeros(1_000_000, dtype=torch.long))
hardware = Hardware.detect(device="cpu")
for _ in range({times}):
    bench = Bench(Task(nn.Linear(2, 2), data, loss_fn=nn.CrossEntropyLoss()), hardware, Limits.of(hardware))
    bench.describe()
    settings = Settings(batch_size={batch}).replace(num_workers=1)
    outcome = bench.run(Probe(kind={kind!r}, settings=settings, window_s=0.01))
    assert isinstance(outcome, Measured), outcome
    if {close}:
        bench.close()
print("DONE", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "batch", "kind", "close"),
    [(1, 40_960, "lap", False), (3, 256, "joint", False)],
    ids=["a lap's loader that nobody closed", "three tunings in one process"],
)
def test_a_process_ends_with_loaders_not_read_to_their_end(times: int, batch: int, kind: str, close: bool) -> None:
    """A million rows, large batches, a worker in the middle of its epoch: the interpreter exits.

    Reports: pytorch/pytorch#48666, ultralytics/ultralytics#18697.
    """
    script = _EXIT.format(times=times, batch=batch, kind=kind, close=close)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "DONE"), done.stderr


class LongList(Dataset[Any]):
    """Two million integers in a list; each sample looks at a thousand of them."""

    def __init__(self) -> None:
        self.items = list(range(10**6, 3 * 10**6))

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), sum(self.items[1000 * index : 1000 * (index + 1)]) / 1e10), index % 2


@pytest.mark.skipif(sys.platform != "linux", reason="shared pages are told apart on Linux only")
def test_what_workers_copy_of_a_long_list_is_in_the_memory_of_the_trial() -> None:
    """Looking at an object writes its reference count, so each forked worker copies the pages: that is measured.

    Reports: pytorch/pytorch#13246, pytorch/pytorch#62066.
    """
    with contextlib.closing(bench(Net(), LongList())) as one:
        peaks = []
        for workers in (0, 2):
            outcome = one.run(probe("loader", batch_size=100, num_workers=workers, window_s=1.5))
            assert isinstance(outcome, Measured), outcome
            peaks.append(outcome.peak_ram_bytes or 0)
    assert peaks[1] - peaks[0] > 32 * 2**20  # about 87 MiB, less what this process gave back meanwhile
