"""Holding other settings' workers still, and giving it up when that blocks the data."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import nn
from torch.utils.data import Dataset

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.settings import Settings
from autotune.task import Task
from autotune.trial import Bench, residents
from autotune.trial.pause import ProgressGuard, can_pause, pause, resume

pytestmark = pytest.mark.skipif(not can_pause(), reason="no SIGSTOP here")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_paused_process_stops_and_goes_on() -> None:
    """SIGSTOP and SIGCONT do what they say, and a process that is gone is no error."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pause([child.pid])
        _wait_for(lambda: _state(child.pid) == "T")
        resume([child.pid])
        _wait_for(lambda: _state(child.pid) != "T")
        child.communicate(b"\n")
    resume([child.pid])


def test_the_guard_rescues_only_what_makes_no_progress() -> None:
    """A growing counter is left alone; one that stands still is rescued once."""
    rescued = threading.Event()
    ticks = iter(range(10**9))
    with ProgressGuard(lambda: next(ticks), rescued.set, patience_s=0.01) as moving:
        time.sleep(0.1)
    assert not moving.rescued
    with ProgressGuard(lambda: 1, rescued.set, patience_s=0.01) as stuck:
        assert rescued.wait(10)
    assert stuck.rescued


class Locked(Dataset[Any]):
    """Every sample is read under a lock shared by all processes, held for most of the time."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        with FileLock(self.path):
            time.sleep(0.005)
            return torch.zeros(8), 0


def test_a_lock_held_by_a_paused_worker_does_not_hang_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laps of two settings on locked data all end; once it was noticed, they run one setting at a time."""
    monkeypatch.setattr(residents, "_PATIENCE_S", 0.5)
    dataset = Locked(tmp_path / "lock")
    hardware = Hardware.detect()

    def task() -> Task:
        return Task(nn.Linear(8, 2), dataset, loss_fn=nn.CrossEntropyLoss(), device="cpu")

    bench = Bench(task(), hardware, Limits.of(hardware), fresh=task)
    try:
        outcomes = [
            bench.run(Probe(kind="lap", settings=Settings(batch_size=2).replace(num_workers=workers), window_s=0.1))
            for _ in range(6)
            for workers in (1, 2)
        ]
    finally:
        bench.close()
    assert all(isinstance(outcome, Measured) for outcome in outcomes)


def _wait_for(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "did not happen within 10 s"
        time.sleep(0.01)
