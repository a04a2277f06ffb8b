"""Loader settings that cannot be combined, or that exhaust something."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from autotune.build.loader import build_loader
from autotune.errors import AutotuneError, SettingsError
from autotune.hardware import Limits
from autotune.measurement import Measured, Outcome, Probe, Rejected
from autotune.planner import CPU, GPU, Plan
from autotune.settings import DOMAINS, Settings
from autotune.space import BatchRules, Candidates, Space
from autotune.study import Study
from autotune.task import Facts, LoaderParts
from tests.faults.small_task import HOST, Net, bench, rows
from tests.planner.fake_machine import FakeMachine, candidates, hardware

ROOT = Path(__file__).parents[2]


def test_a_prefetch_factor_of_zero_is_refused_everywhere() -> None:
    """torch takes it and fails at the first batch: neither settings nor a file may hold it.

    Report: pytorch/pytorch#196093.
    """
    assert not DOMAINS["prefetch_factor"].holds(0)
    with pytest.raises(SettingsError, match="prefetch_factor=0"):
        Settings().replace(num_workers=2, prefetch_factor=0)
    with pytest.raises(SettingsError, match="prefetch_factor"):
        Space(prefetch_factor=[0, 2])
    stored = json.dumps({**Settings().replace(num_workers=2).to_json(), "prefetch_factor": 0})
    with pytest.raises(AutotuneError, match="prefetch_factor"):
        Settings.from_json(json.loads(stored))


def test_nothing_is_pinned_where_there_is_no_accelerator() -> None:
    """Not even where the user's own loader pins: torch would ignore it, with a warning each epoch.

    Report: torchgeo/torchgeo-bench#253.
    """
    loader = DataLoader(rows(), batch_size=16, pin_memory=True)
    with contextlib.closing(bench(Net(), loader)) as one:
        space = Candidates.of(one.describe(), HOST, Limits.of(HOST), BatchRules(), Space())
        assert not space.baseline.pin_memory
        assert space.dropped["pin_memory"] == "no accelerator to copy to"
        assert "pin_memory" in str(space.refusal(space.baseline.replace(pin_memory=True)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outcome = one.run(Probe(kind="joint", settings=space.baseline, window_s=0.05))
    assert isinstance(outcome, Measured), outcome


class Named(dict[str, Any]):
    """A batch with a method that the model calls."""

    def inputs(self) -> Any:
        return self["x"]


def named(samples: list[Any]) -> Named:
    return Named(x=torch.stack([x for x, _ in samples]), y=torch.stack([y for _, y in samples]))


@pytest.mark.gpu
def test_a_pinned_batch_keeps_its_type() -> None:
    """A dict subclass comes out of the pinning thread as itself, method and all.

    Reports: pytorch/pytorch#67831, pytorch/pytorch#32150.
    """
    data = LoaderParts.of(rows(64), collate_fn=named)
    settings = Settings(batch_size=16).replace(num_workers=1, pin_memory=True)
    batch = next(iter(build_loader(data, settings, has_batch_norm=False)))
    assert type(batch) is Named
    assert batch.inputs().is_pinned()


class Wide(Dataset[Any]):
    """Samples of eight tensors and a label."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        return {**{f"x{number}": torch.zeros(4) for number in range(8)}, "y": index % 2}


def wide_facts(**changes: Any) -> Facts:
    """Facts of ``Wide`` as a bench gathers them."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        batch = batch if isinstance(batch, dict) else torch.utils.data.default_collate(batch)
        return nn.functional.cross_entropy(model(batch["x0"]), batch["y"])

    with contextlib.closing(bench(nn.Linear(4, 2), Wide(), loss_fn=None, training_step=step, **changes)) as one:
        return one.describe()


def test_open_files_bound_what_workers_hold_ready() -> None:
    """128 files and batches of nine tensors: few ahead are fine, many are refused with the remedy.

    Reports: pytorch/pytorch#973, pytorch/pytorch#11201.
    """
    facts = wide_facts()
    assert (facts.batch_tensors, facts.sample_tensors) == (9, 0)
    limits = dataclasses.replace(Limits.of(HOST), open_files=128)
    space = Candidates.of(facts, HOST, limits, BatchRules(), Space())
    base = space.baseline
    assert space.refusal(base.replace(num_workers=2, prefetch_factor=2)) is None
    refusal = str(space.refusal(base.replace(num_workers=2, prefetch_factor=8)))
    assert "ulimit -n" in refusal
    assert "set_sharing_strategy" in refusal
    by_name = dataclasses.replace(facts, caller={**facts.caller, "sharing_strategy": "file_system"})
    space = Candidates.of(by_name, HOST, limits, BatchRules(), Space())
    assert space.refusal(base.replace(num_workers=2, prefetch_factor=8)) is None


def test_samples_left_apart_by_the_collate_function_each_count() -> None:
    """A list of samples has as many tensors as samples times nine: larger batches hold more files.

    Reports: pytorch/pytorch#973, pytorch/pytorch#11201.
    """
    facts = wide_facts(collate_fn=list)
    assert facts.batch_tensors == 0
    assert facts.sample_tensors >= 8
    limits = dataclasses.replace(Limits.of(HOST), open_files=1024)
    space = Candidates.of(facts, HOST, limits, BatchRules(max_effective_batch_size=64), Space())
    settings = space.baseline.replace(num_workers=1, prefetch_factor=2)
    assert space.refusal(settings.replace(batch_size=8)) is None
    assert "open files" in str(space.refusal(settings.replace(batch_size=32)))


_FEW_FILES = """
import dataclasses, os, resource
import torch
from torch import nn
from autotune.hardware import Hardware, Limits
from autotune.measurement import Probe
from autotune.space import BatchRules, Candidates, Space
from autotune.task import Task
from autotune.trial import Bench
from tests.faults.test_faults_loader import Wide

def step(model, batch):
    return nn.functional.cross_entropy(model(batch["x0"]), batch["y"])

resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
torch.set_num_threads(1)
task = Task(nn.Linear(4, 2), Wide(), training_step=step, device="cpu")
hardware = dataclasses.replace(Hardware.detect(device="cpu"), cores=2, has_compiler=False)
limits = Limits.of(hardware)
bench = Bench(task, hardware, limits, fresh=lambda: task)
space = Candidates.of(bench.describe(), hardware, limits, BatchRules(), Space())
base = space.baseline
bench.run(Probe(kind="joint", settings=base.replace(num_workers=1), window_s=0.0))  # what multiprocessing keeps
before = len(os.listdir("/proc/self/fd"))
fates = []
for workers in (1, 2):
    for prefetch in (2, 4, 8):
        settings = base.replace(num_workers=workers, prefetch_factor=prefetch)
        if space.refusal(settings) is None:
            fates.append(bench.run(Probe(kind="joint", settings=settings, window_s=0.2)).fate)
bench.close()
print(limits.open_files, set(fates), len(fates), max(0, len(os.listdir("/proc/self/fd")) - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
def test_every_setting_that_is_admitted_runs_with_few_open_files() -> None:
    """In a process that may open 128 files: each trial is measured, and no descriptor is left.

    Reports: pytorch/pytorch#973, pytorch/pytorch#11201.
    """
    done = subprocess.run(
        [sys.executable, "-c", _FEW_FILES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout.strip() == "128 {'measured'} 2 0", done.stdout + done.stderr


def test_a_small_shared_memory_bounds_batches_times_workers() -> None:
    """64 MB of it and rows of 8 MB: whatever is admitted with workers fits, and the refusal names the remedy.

    Report: bytedance/Protenix#2.
    """
    facts: Any = SimpleNamespace(**{**vars(candidates().facts), "sample_bytes": 8 * 10**6, "samples": 10**6})
    limits = Limits(ram_bytes=2**36, shm_bytes=64 * 10**6, open_files=None)
    space = candidates(Settings(batch_size=1), facts=facts, limits=limits, max_effective_batch_size=10**6)
    said = set()
    for size, workers, prefetch in itertools.product((1, 2, 8), (1, 2, 4), (2, 4)):
        settings = Settings(batch_size=size).replace(num_workers=workers, prefetch_factor=prefetch)
        refusal = space.refusal(settings)
        if refusal is None:
            assert size * workers * prefetch * 8 * 10**6 <= 64 * 10**6
        else:
            said.add("--shm-size" in refusal and "/dev/shm" in refusal)
    assert said == {True}


def test_settings_that_a_limit_keeps_out_are_said() -> None:
    """Not trying workers for lack of shared memory is no secret: one warning, with the remedy.

    Report: bytedance/Protenix#2.
    """
    facts = candidates().facts
    small = Limits(ram_bytes=2**36, shm_bytes=1000, open_files=None)
    machine = FakeMachine(lambda settings: 100.0)
    plan = _plan(machine, candidates(facts=facts, limits=small))
    found = plan.search()
    assert all(not asked.settings.num_workers for asked in machine.probes)
    (said,) = [text for text in found.warnings if "/dev/shm" in text]
    assert said.startswith("Some settings were not tried for lack of room")
    assert "--shm-size" in said


def _plan(machine: FakeMachine, space: Candidates, *, accelerator: Any = None) -> Plan:
    return Plan(
        candidates=space,
        hardware=hardware(8, accelerator),
        pace=GPU if accelerator else CPU,
        study=Study(),
        run=machine.run,
        clock=machine.clock,
        budget_s=120.0,
        started_s=0.0,
    )


def test_pinning_that_fails_is_left_off() -> None:
    """The pinning thread runs out of memory: the trial is marked failed, and all that follows is not pinned.

    Report: hearbenchmark/hear-eval-kit#316.
    """

    def fate(asked: Probe) -> Outcome | None:
        if not asked.settings.pin_memory or asked.kind == "compute":
            return None
        reason = "RuntimeError: Caught RuntimeError in pin memory thread for device 0."
        return Rejected(kind=asked.kind, settings=asked.settings, phase="step", reason=reason)

    values = {"precision": ("bf16-mixed",), "pin_memory": (True,), "optimizer_implementation": ("fused",)}
    machine = FakeMachine(lambda settings: 150.0 if settings.optimizer_implementation else 100.0, fate=fate)
    accelerator = type("Accelerator", (), {"memory_bytes": None})()
    plan = _plan(machine, candidates(values=values), accelerator=accelerator)
    found = plan.search()
    failed = [trial for trial in plan.study.outcomes if trial.settings.pin_memory]
    assert [trial.fate for trial in failed] == ["rejected"]
    assert found.finalists
    assert not any(one.settings.pin_memory for one in found.finalists)
    assert found.finalists[0].settings.optimizer_implementation == "fused"
    assert plan.candidates.dropped["pin_memory"].startswith("pinning failed")


def test_every_setting_of_the_loader_that_is_admitted_yields_a_batch() -> None:
    """What the search can emit builds a loader, without workers too.

    Reports: AnswerDotAI/ModernBERT#38, deepseek-ai/DeepSpec#40.
    """
    data = LoaderParts.of(rows(64))
    for workers, prefetch in ((0, 2), (1, 2), (1, 4)):
        more = {"prefetch_factor": prefetch} if workers else {}
        settings = Settings(batch_size=16).replace(num_workers=2).replace(num_workers=workers, **more)
        assert len(next(iter(build_loader(data, settings, has_batch_norm=False)))[0]) == 16
