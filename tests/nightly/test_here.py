"""The lock on a device, and who else is seen on it."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from autotune import Settings
from autotune.errors import BusyError
from autotune.hardware import Accelerator
from autotune.measurement import Measured
from autotune.nightly.here import device_lock, others_at_work

SETTINGS = Settings(batch_size=32)


def test_two_retunes_of_one_device_wait_for_each_other(world: Any, tmp_path: Path) -> None:
    """The second begins when the first has ended."""
    order: list[str] = []

    def second() -> None:
        with device_lock(world.task, folder=tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    with device_lock(world.task, folder=tmp_path):
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_device_that_stays_held_is_an_error_in_the_end(world: Any, tmp_path: Path) -> None:
    """Nobody waits for ever."""
    with (
        device_lock(world.task, folder=tmp_path),
        pytest.raises(BusyError, match="cpu"),
        device_lock(world.task, folder=tmp_path, wait_s=0.05),
    ):
        pass


def test_others_on_the_cores_are_seen_while_stepping(world: Any) -> None:
    """More than a quarter of a core is other work; less, and what cannot be read, is none."""
    for cores, seen in ((0.9, "other processes use 0.9 of the cores"), (0.1, None), (None, None)):
        run = _with_others(world, cores)
        assert others_at_work(dataclasses.replace(world.here, run=run), SETTINGS) == seen


def test_others_on_the_device_are_seen_without_a_step(world: Any) -> None:
    """The driver says so."""
    card = Accelerator(type="cuda", name="A", index=0, count=1, other_processes=2)
    world.hardware = dataclasses.replace(world.hardware, accelerator=card)
    assert others_at_work(world.here, SETTINGS) == "2 other processes are on the device"
    assert world.looks == 0


def _with_others(world: Any, cores: float | None) -> Any:
    def run(probe: Any) -> Any:
        assert probe.kind in ("joint", "lap")  # others are not read in the other kinds
        outcome = world.run(probe)
        assert isinstance(outcome, Measured)
        return dataclasses.replace(outcome, others_cores=cores)

    return run
