"""A machine of known rates with a clock of its own, and a store of configs for it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from autotune import Settings, Task, TunedConfig
from autotune.config import Speedup
from autotune.hardware import Hardware, Limits
from autotune.measurement import Chunk, Measured, Outcome, OutOfMemory, Probe
from autotune.nightly.here import Here
from autotune.nightly.retune import Seams
from autotune.profiles import Key, Profiles

_DATA = Path(__file__).parents[1] / "config" / "data" / "version_1.json"
_MACHINE = Hardware.detect(device="cpu")

BASELINE = Settings(batch_size=32)
STORED = Settings(batch_size=32, channels_last=True)
BETTER = Settings(batch_size=16, gradient_accumulation_steps=2, channels_last=True)


class World:
    """What settings do on one machine; every look at it takes time of its own clock."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.hardware = _MACHINE
        self.rates: dict[Settings, float] = {BASELINE: 100.0, STORED: 150.0}
        self.out_of_memory: set[tuple[str, Settings]] = set()
        self.noise = 0.01
        self.others: str | None = None
        self.answer = STORED
        self.tuned: list[dict[str, Any]] = []
        self.locked = 0
        self.seconds = 0.0
        self.date = datetime(2026, 5, 1, tzinfo=timezone.utc)
        self.looks = 0
        self.parts: dict[str, str] = {}

    def run(self, probe: Probe) -> Outcome:
        """A steady rate, some noise, and failures that were ordered."""
        self.looks += 1
        self.seconds += probe.window_s + 0.1
        settings = probe.settings
        if (probe.kind, settings) in self.out_of_memory:
            return OutOfMemory(kind=probe.kind, settings=settings, where="allocator", message="no room")
        rate = self.rates.get(settings, 90.0) * (1 + self.noise * ((self.looks * 7) % 5 - 2))
        chunks = (Chunk(round(100 * rate), 100.0),)
        return Measured(kind=probe.kind, settings=settings, chunks=chunks, others_cores=0.0)

    @contextlib.contextmanager
    def opened(self, task: Task) -> Iterator[Here]:
        """The task on this machine."""
        yield Here(
            hardware=self.hardware,
            limits=Limits.of(self.hardware),
            fingerprint="sha256:task",
            run=self.run,
            parts=self.parts,
        )

    @contextlib.contextmanager
    def lock(self, task: Task) -> Iterator[None]:
        """Counts."""
        self.locked += 1
        yield

    def tune(self, task: Task, **options: Any) -> TunedConfig:
        """A study that found ``answer``."""
        self.tuned.append(options)
        self.seconds += 60.0
        return self.config(self.answer)

    def config(self, settings: Settings, **evidence: Any) -> TunedConfig:
        """A config of these settings, tuned against the baseline on this machine."""
        document = json.loads(_DATA.read_text("utf-8"))
        document["task"]["fingerprint"] = document["facts"]["fingerprint"] = "sha256:task"
        config = TunedConfig.from_json(document, task=self.task)
        ratio = self.rates.get(settings, 90.0) / self.rates[BASELINE]
        kept = settings == BASELINE
        won = Speedup(median=ratio, low=ratio * 0.98, high=ratio * 1.02, rounds=6)
        facts = {"kept_baseline": kept, "speedup": None if kept else won, "created": self.date.isoformat()}
        facts |= {"samples_per_s": 100.0 * ratio, "baseline_samples_per_s": 100.0, **evidence}
        return dataclasses.replace(
            config,
            settings=settings,
            baseline=BASELINE,
            hardware=self.hardware,
            same_batch=None,
            evidence=dataclasses.replace(config.evidence, **facts),
        )

    @property
    def key(self) -> Key:
        """Of the task on this machine."""
        return Key(task="sha256:task", hardware=self.hardware.fingerprint)

    @property
    def here(self) -> Here:
        """The task on this machine."""
        with self.opened(self.task) as here:
            return here

    @property
    def seams(self) -> Seams:
        """This world in place of the real one."""
        return Seams(
            opened=self.opened,
            tune=self.tune,
            busy=lambda *_: self.others,
            lock=self.lock,
            clock=lambda: self.seconds,
            now=lambda: self.date + timedelta(seconds=self.seconds),
        )


@pytest.fixture
def task() -> Task:
    """A toy."""
    data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    return Task(nn.Linear(4, 2), data, loss_fn=nn.CrossEntropyLoss(), device="cpu")


@pytest.fixture
def world(task: Task) -> World:
    """A quiet machine on which the stored settings are 1.5 times as fast as the baseline."""
    return World(task)


@pytest.fixture
def store(tmp_path: Path) -> Profiles:
    """A folder that is not there yet."""
    return Profiles(tmp_path / "profiles")


@pytest.fixture
def other_machine() -> Callable[[World], World]:
    """The same world seen from a machine with other cores."""

    def moved(world: World) -> World:
        other = copy.copy(world)
        other.hardware = dataclasses.replace(_MACHINE, cores=_MACHINE.cores + 2)
        return other

    return moved
