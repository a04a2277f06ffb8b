"""Pickling, spawn, and what each start of a worker costs."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from autotune.hardware import Limits
from autotune.measurement import Chunk, Measured, Outcome, Probe
from autotune.planner import CPU, Plan
from autotune.settings import Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.study import Study
from tests.faults.small_task import HOST, Net, bench, rows
from tests.planner.fake_machine import FakeMachine, candidates, hardware


def search(space: Candidates) -> tuple[Plan, FakeMachine]:
    """A search in which workers would pay."""
    machine = FakeMachine(lambda settings: 200.0 if settings.num_workers else 100.0)
    plan = Plan(
        candidates=space,
        hardware=hardware(4),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=60.0,
        started_s=0.0,
    )
    plan.search()
    return plan, machine


def cell_dataset() -> Any:
    """A dataset whose class was made in a main program that is no file."""
    main = types.ModuleType("__main__")
    main.Dataset, main.torch = Dataset, torch  # type: ignore[attr-defined]
    code = """
class Cell(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.zeros(8), index % 2
"""
    exec(code, main.__dict__)
    return main


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda main: (rows(64), lambda samples: torch.utils.data.default_collate(samples)), "collate_fn"),
        (lambda main: (main.Cell(), None), "notebook"),
    ],
    ids=["a lambda as collate_fn", "a dataset of a notebook"],
)
def test_what_spawned_workers_cannot_get_leaves_them_off(
    make: Callable[[Any], Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under spawn the task still trains, no trial has workers, and the report names what cannot be sent.

    Reports: HazyResearch/cartridges#20, computational-cell-analytics/dl-for-micro#20.
    """
    main = cell_dataset()
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    dataset, collate = make(main)
    with contextlib.closing(bench(Net(), dataset, collate_fn=collate)) as one:
        facts = one.describe()
        assert isinstance(one.run(Probe(kind="joint", settings=Settings(batch_size=8), window_s=0.02)), Measured)
    space = Candidates.of(facts, HOST, Limits.of(HOST), BatchRules(), Space())
    assert says in space.dropped["num_workers"]
    plan, machine = search(space)
    assert not any(asked.settings.num_workers for asked in machine.probes)
    assert says in plan.candidates.dropped["num_workers"]


_SLOW_MODULE = """
import time
import torch
from torch.utils.data import Dataset

time.sleep({seconds})


class Slow(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.zeros(8), index % 2
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_start_of_workers_is_priced_into_their_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 rows and a module that takes two seconds to import: each epoch of one spawned worker costs them.

    Report: pytorch/pytorch#12831.
    """
    seconds = 2.0
    name = f"slow_rows_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(_SLOW_MODULE.format(seconds=seconds))
    monkeypatch.syspath_prepend(str(tmp_path))
    dataset = importlib.import_module(name).Slow()
    with contextlib.closing(bench(nn.Linear(8, 2), dataset)) as one:
        outcomes = []
        for workers in (0, 1):
            settings = Settings(batch_size=1).replace(num_workers=workers)
            if workers:
                settings = settings.replace(multiprocessing_context="spawn", persistent_workers=False)
            outcomes.append(one.run(Probe(kind="joint", settings=settings, window_s=0.0)))
    alone, with_worker = (_measured(outcome) for outcome in outcomes)
    assert with_worker.samples_per_s <= 32 / seconds
    assert alone.samples_per_s > with_worker.samples_per_s


def _measured(outcome: Outcome) -> Measured:
    assert isinstance(outcome, Measured), outcome
    return outcome


def test_workers_that_pay_only_within_an_epoch_are_not_chosen() -> None:
    """Twice as fast between epochs, but two seconds to start for 32 rows: no workers.

    Report: pytorch/pytorch#12831.
    """

    def fate(asked: Probe) -> Outcome | None:
        workers = asked.settings.num_workers
        if asked.kind != "joint" or not workers:
            return None
        chunks = (Chunk(32, 0.16, 0.08),) * 2
        return Measured(kind="joint", settings=asked.settings, chunks=chunks, epoch_rows=32, epoch_turn_s=2.0)

    machine = FakeMachine(lambda settings: 100.0, fate=fate)
    plan = Plan(
        candidates=candidates(),
        hardware=hardware(2),
        pace=CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=60.0,
        started_s=0.0,
    )
    found = plan.search()
    assert any(asked.settings.num_workers for asked in machine.probes)
    assert all(one.settings.num_workers == 0 for one in found.finalists)
