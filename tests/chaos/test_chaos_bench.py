"""The real bench with real loader workers, in a sandbox, under a task that misbehaves."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.sandbox import Sandbox
from autotune.settings import Settings
from autotune.task import Task
from tests.chaos.conftest import Figures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("benches")]

_TRIALS = 30
_LIMITS = Limits(ram_bytes=2**30, shm_bytes=None, open_files=None)
_HEALTHY = Probe(kind="compute", settings=Settings(batch_size=16), steps=2, deadline_s=60.0)


def _orders(task: Any) -> list[str]:
    """Every way once, then those that leave the process alive at random; shuffled."""
    source = random.Random(7)
    harmless = ("healthy", *task.IN_MODEL, *task.IN_DATA)
    orders = [*task.DEADLY, *harmless]
    orders += [source.choice(harmless) for _ in range(_TRIALS - len(orders))]
    source.shuffle(orders)
    return orders


def _probe(way: str, turn: int) -> Probe:
    workers = 2 if way.startswith("worker") else turn % 6 == 0
    settings = Settings(batch_size=8).replace(num_workers=int(workers))
    hangs = way in ("hangs", "worker hangs")
    return Probe(kind="joint", settings=settings, window_s=0.02, seed=turn, deadline_s=1.5 if hangs else 60.0)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where compiled kernels stay for the real training: the caller's, so no leftover."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    return tmp_path


@pytest.mark.timeout(400)
def test_a_task_that_misbehaves_at_random_is_answered_rightly_and_trains_as_before(
    tmp_path: Path, own_cache: Path, nothing_left: Path, hardware: Hardware, figures: Figures
) -> None:
    """After each fault the same probe gives the loss of the first one: nothing of the fault is in it."""
    chaos: Any = importlib.import_module("chaos_task")
    children = set(psutil.Process().children(recursive=True))
    order = tmp_path / "order"
    order.write_text("healthy")
    task = Task(chaos.Net(order), chaos.Rows(order), loss_fn=torch.nn.CrossEntropyLoss(), device="cpu")
    with Sandbox(task, hardware, _LIMITS) as sandbox:
        sandbox.describe()
        expected = _losses(sandbox)
        for turn, way in enumerate(_orders(chaos)):
            figures.count(way)
            order.write_text(way)
            probe = _probe(way, turn)
            outcome = sandbox.run(probe)
            order.write_text("healthy")
            assert outcome.fate in chaos.FATES[way], (way, outcome)
            assert (outcome.settings, outcome.kind) == (probe.settings, "joint")
            assert _losses(sandbox) == expected, way
            figures.count(way, survived=True)
        assert sandbox.warnings == ()
    assert set(psutil.Process().children(recursive=True)) == children


def _losses(sandbox: Sandbox) -> tuple[float | None, float | None]:
    outcome = sandbox.run(_HEALTHY)
    assert isinstance(outcome, Measured), outcome
    return outcome.first_loss, outcome.last_loss
