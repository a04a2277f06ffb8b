"""Runs tasks built with other people's libraries on a bench in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Probe
from autotune.sandbox import arrival, transport
from autotune.settings import Settings
from autotune.task import Facts, Task
from autotune.trial import Bench

_WINDOW_S = 0.02


@dataclasses.dataclass
class Desk:
    """A task on its bench."""

    task: Task
    bench: Bench
    facts: Facts

    def measure(self, kind: Any = "joint", **knobs: Any) -> Measured:
        """What a probe measured; anything else fails the test with the outcome."""
        settings = Settings() if self.facts.batches_kept is None else Settings(batch_size=None)
        outcome = self.bench.run(Probe(kind=kind, settings=settings.replace(**knobs), window_s=_WINDOW_S))
        assert isinstance(outcome, Measured), outcome
        return outcome


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models gain nothing from threads and lose much to busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def desk() -> Iterator[Callable[..., Desk]]:
    """Puts a task (or the arguments of one) on a bench, and closes all of them."""
    made: list[Bench] = []
    hardware = Hardware.detect(device="cpu")

    def put(*arguments: Any, **keywords: Any) -> Desk:
        given = arguments[0]
        task = given if isinstance(given, Task) else Task(*arguments, **{"device": "cpu", **keywords})
        made.append(Bench(task, hardware, Limits.of(hardware)))
        return Desk(task, made[-1], made[-1].describe())

    yield put
    for bench in made:
        bench.close()


@pytest.fixture
def crossed(tmp_path: Path) -> Callable[[Task], Task]:
    """Sends a task through the pickle by which it enters the isolated process."""

    def cross(task: Task) -> Task:
        transport.dump(task, tmp_path, limit_bytes=2**30)
        return arrival.load(tmp_path)

    return cross
