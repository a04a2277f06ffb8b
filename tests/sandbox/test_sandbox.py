"""The sandbox while everything is well, and what it raises when the task is not."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autotune.errors import DoesNotFitError, SandboxError, TaskError
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe
from autotune.sandbox import Sandbox
from autotune.task import Task


def _seen(outcome: Outcome) -> Any:
    assert isinstance(outcome, Measured), outcome
    return json.loads(outcome.warnings[0])


def _task(**values: Any) -> Any:
    return SimpleNamespace(**values)


def test_printing_does_not_disturb_the_answers(
    nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe
) -> None:
    """User code that writes frame-like bytes to its output changes no answer, and one child serves all probes."""
    with Sandbox(_task(), hardware, limits, bench="sandbox_benches:Chatty") as sandbox:
        assert [type(sandbox.run(probe)) for _ in range(3)] == [Measured] * 3
        assert sandbox.starts == 1
        assert sandbox.start_s > 0


def test_child_lives_in_the_callers_surroundings(
    nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths, environment, switches and threads are the caller's; temporary files and trackers are not."""
    monkeypatch.setenv("MARK", "here")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    monkeypatch.syspath_prepend("/somewhere/else")
    monkeypatch.chdir(nothing_left.parent)
    default = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(default[2] + 1)
    try:
        with Sandbox(_task(), hardware, limits, bench="sandbox_benches:Looking") as sandbox:
            seen = _seen(sandbox.run(probe))
    finally:
        torch.set_default_dtype(default[0])
        torch.set_float32_matmul_precision(default[1])
        torch.set_num_threads(default[2])
    assert seen["sys_path"] == sys.path
    assert seen["argv"] == ["train.py", "--lr", "1"]
    assert seen["cwd"] == str(nothing_left.parent)
    assert Path(seen["tempdir"]).parent == nothing_left
    assert seen["mode"] == 0o700
    assert seen["environ"]["MARK"] == "here"
    assert seen["environ"]["WANDB_MODE"] == "disabled"
    assert seen["environ"]["MLFLOW_TRACKING_URI"].startswith(f"file://{nothing_left}")
    assert seen["environ"]["TORCHINDUCTOR_CACHE_DIR"].startswith(f"{nothing_left}/torchinductor_")
    assert seen["environ"]["PYTHONPATH"] == os.environ.get("PYTHONPATH")
    assert (seen["dtype"], seen["matmul"], seen["threads"]) == ("torch.float64", "high", default[2] + 1)
    assert seen["session"] is True
    assert int(seen["oom_score_adj"]) > 0


def test_a_process_finds_the_notes_of_the_one_before(
    nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe
) -> None:
    """In the private folder, which is gone with the sandbox."""
    fresh = dataclasses.replace(probe, fresh=True)
    with Sandbox(_task(), hardware, limits, bench="sandbox_benches:Noting") as sandbox:
        assert [_seen(sandbox.run(fresh))["before"] for _ in range(2)] == [0, 1]
        assert sandbox.starts == 2


def test_fresh_probe_gets_a_child_that_ran_nothing(
    nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe
) -> None:
    """The first child serves the first fresh probe; the next fresh one gets a child of its own."""
    fresh = dataclasses.replace(probe, fresh=True)
    with Sandbox(_task(), hardware, limits, bench="sandbox_benches:Healthy") as sandbox:
        pids = [_seen(sandbox.run(one))["pid"] for one in (fresh, probe, fresh)]
        assert sandbox.starts == 2
    assert pids[0] == pids[1] != pids[2]


def test_large_task_is_refused_with_the_remedy(nothing_left: Path, hardware: Hardware, limits: Limits) -> None:
    """A task above a quarter of the free RAM is not copied; the error asks for a factory."""
    small = dataclasses.replace(hardware, ram_available_bytes=2**24)
    with (
        pytest.raises(TaskError, match="factory"),
        Sandbox(_task(data=torch.ones(2**21)), small, limits, bench="sandbox_benches:Healthy"),
    ):
        pass


def test_address_space_limit_turns_a_large_allocation_into_an_exception(
    nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe
) -> None:
    """On a CPU a compute probe without workers gets an allocator error where others meet the watchdog."""
    compute = dataclasses.replace(probe, kind="compute")
    task = _task(device="cpu")
    two_gib = dataclasses.replace(limits, ram_bytes=2**31)
    with Sandbox(task, hardware, two_gib, bench="sandbox_benches:Limited") as sandbox:
        limited, free = sandbox.run(compute), sandbox.run(probe)
    assert "can't allocate memory" in _seen(limited)
    assert isinstance(free, OutOfMemory)
    assert free.where == "watchdog"


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("own", TaskError, "loss_fn is missing. Pass loss_fn."),
        ("other", TaskError, "ValueError: shapes do not match"),
        ("memory", DoesNotFitError, "no room"),
        ("exit", SandboxError, "ended with exit code 9 while describing the task"),
    ],
)
def test_failed_description_is_raised_here(
    nothing_left: Path, hardware: Hardware, limits: Limits, what: str, kind: type[Exception], text: str
) -> None:
    """What describing raises in the child is raised in the caller, with the child's traceback as its cause."""
    with Sandbox(_task(what=what), hardware, limits, bench="sandbox_benches:Refusing") as sandbox:
        with pytest.raises(kind, match=text.replace(".", r"\.")) as caught:
            sandbox.describe()
        if what != "exit":
            assert "sandbox_benches.py" in str(caught.value.__cause__)


def test_failed_start_leaves_nothing(nothing_left: Path, hardware: Hardware, limits: Limits) -> None:
    """A bench that cannot be made is an error on entering, after which nothing is left."""
    with (
        pytest.raises(TaskError, match="KeyError: 'made on purpose'"),
        Sandbox(_task(), hardware, limits, bench="sandbox_benches:BrokenConstructor"),
    ):
        pass


def test_sandbox_inside_a_sandbox_names_the_guard(
    hardware: Hardware, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A main file that tunes while the child loads it is told about the guard, and no process is started."""
    monkeypatch.setenv("AUTOTUNE_INSIDE_SANDBOX", "1")
    with pytest.raises(SandboxError, match='if __name__ == "__main__"'), Sandbox(_task(), hardware, limits):
        pass


def test_closed_sandbox_says_so(hardware: Hardware, limits: Limits, probe: Probe) -> None:
    """A probe outside of the with statement is an error, not a new process."""
    with pytest.raises(SandboxError, match="not open"):
        Sandbox(_task(), hardware, limits).run(probe)


def test_real_bench_describes_and_measures(
    nothing_left: Path,
    hardware: Hardware,
    limits: Limits,
    probe: Probe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The real bench runs in the child: facts and a measured window of a small task come back."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch makes this folder, and it is to stay
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    model = nn.Linear(8, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    task = Task(model, data, loss_fn=nn.functional.cross_entropy, device="cpu")
    with Sandbox(task, hardware, limits) as sandbox:
        facts = sandbox.describe()
        outcome = sandbox.run(dataclasses.replace(probe, window_s=0.1))
    assert facts.samples == 64
    assert isinstance(outcome, Measured), outcome
    assert outcome.samples_per_s > 0
    assert outcome.cost_s > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
