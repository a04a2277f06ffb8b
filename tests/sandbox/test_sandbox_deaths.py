"""One test for each way a child can die; each ends with the next call working and nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.hardware import Hardware, Limits
from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.sandbox import Sandbox

pytestmark = pytest.mark.slow

_FATAL = 13  # as in sandbox_benches


class Dying:
    """Runs one fatal probe of a bench, then proves that the next one works."""

    def __init__(self, hardware: Hardware, limits: Limits, probe: Probe) -> None:
        self.hardware, self.limits, self.probe = hardware, limits, probe

    def __call__(self, bench: str, *, starts: int = 2, deadline_s: float = 120.0, limits: Limits | None = None) -> Any:
        fatal = dataclasses.replace(self.probe, seed=_FATAL, deadline_s=deadline_s)
        task: Any = SimpleNamespace()
        with Sandbox(task, self.hardware, limits or self.limits, bench=f"sandbox_benches:{bench}") as sandbox:
            outcome = sandbox.run(fatal)
            after = sandbox.run(self.probe)
            assert isinstance(after, Measured)
            assert after.samples_per_s == 2.0
            assert sandbox.starts == starts
            assert sandbox.warnings == ()
        return outcome


@pytest.fixture
def dying(nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe) -> Dying:
    """``dying("Bench")`` gives the outcome of its fatal probe."""
    return Dying(hardware, limits, probe)


def test_kill_signal_is_a_crash_with_the_last_words(dying: Dying) -> None:
    """SIGKILL without a sign of memory is a crash, and what the child printed before is in it."""
    outcome = dying("Killed")
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == -signal.SIGKILL
    assert outcome.output_tail.endswith("these are my last words")
    assert outcome.cost_s > 0


def test_kill_signal_near_the_limit_is_out_of_memory(
    dying: Dying, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL while the tree was close to its limit counts as out of memory."""
    monkeypatch.setattr("autotune.sandbox.process.tree_memory_bytes", lambda pid: int(0.9 * limits.ram_bytes))
    outcome = dying("Killed")
    assert isinstance(outcome, OutOfMemory)
    assert outcome.where == "killed"


def test_segmentation_fault_is_a_crash_that_names_the_place(dying: Dying) -> None:
    """A segfault is a crash, with python's own account of where it happened."""
    outcome = dying("Segfault")
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == -signal.SIGSEGV
    assert "string_at" in outcome.output_tail


def test_hang_ends_at_the_deadline(dying: Dying) -> None:
    """A child that never answers is ended at the probe's deadline."""
    outcome = dying("Hang", deadline_s=1.0)
    assert isinstance(outcome, TimedOut)
    assert outcome.deadline_s == 1.0
    assert "about to hang" in outcome.output_tail
    assert outcome.cost_s >= 1.0


def test_exit_of_user_code_is_a_crash(dying: Dying) -> None:
    """``os._exit`` in user code is a crash with that exit code."""
    outcome = dying("Exit")
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == 17


def test_sys_exit_is_a_crash_at_once_whatever_threads_run(dying: Dying) -> None:
    """A thread that user code left running cannot keep the child from ending."""
    outcome = dying("ExitBesideThread")
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == 6


def test_exception_that_cannot_be_pickled_or_printed_is_a_rejection(dying: Dying) -> None:
    """An exception whose pickling and text both fail still arrives, by name and traceback."""
    outcome = dying("Unpicklable")
    assert isinstance(outcome, Rejected)
    assert outcome.error_type == "sandbox_benches.BadError"
    assert "in die" in str(outcome.traceback)


def test_killed_loader_worker_is_the_benchs_answer(dying: Dying) -> None:
    """A killed worker of a DataLoader leaves the child alive, and its siblings do not survive.

    Report: pytorch/pytorch#8976.
    """
    outcome = dying("WorkerKilled", starts=1)
    assert isinstance(outcome, Rejected)
    assert "DataLoader worker" in outcome.reason


def test_loader_worker_that_never_answers_ends_at_the_deadline(dying: Dying) -> None:
    """Loader workers that sleep for ever are ended together with the child.

    Report: pytorch/pytorch#51344.
    """
    assert isinstance(dying("WorkerSilent", deadline_s=2.0), TimedOut)


def test_memory_above_the_limit_is_stopped_by_the_watchdog(dying: Dying) -> None:
    """A tree that outgrows its limit is ended long before the machine's memory is used up."""
    outcome = dying("Greedy", limits=Limits(ram_bytes=2**30, shm_bytes=None, open_files=None))
    assert isinstance(outcome, OutOfMemory)
    assert outcome.where == "watchdog"


def test_flooded_output_is_cut_and_its_end_kept(dying: Dying) -> None:
    """A child that prints without end fills neither pipe nor disk, and its last line is kept."""
    outcome = dying("Flood")
    assert isinstance(outcome, Crashed)
    assert outcome.output_tail.endswith("the last line")
    assert len(outcome.output_tail.splitlines()) <= 40


def test_grandchild_that_ignores_signals_does_not_survive(dying: Dying) -> None:
    """A process of a session of its own, deaf to SIGTERM and orphaned, is ended all the same."""
    outcome = dying("StubbornGrandchild")
    assert isinstance(outcome, Crashed)
    assert outcome.exit_code == 5


def test_segments_of_a_killed_child_are_removed(dying: Dying) -> None:
    """Named shared memory that a killed child could not remove is removed for it."""
    assert isinstance(dying("SharedMemory"), Crashed)


def test_poisoned_bench_gets_a_new_process(dying: Dying) -> None:
    """After an answer that spoiled the process, the next probe runs in another one.

    Report: NVIDIA/MinkowskiEngine#359.
    """
    outcome = dying("Poisoned")
    assert isinstance(outcome, OutOfMemory)
    assert outcome.where == "allocator"


def test_ctrl_c_goes_through_and_ends_the_child(
    nothing_left: Path, hardware: Hardware, limits: Limits, probe: Probe
) -> None:
    """Ctrl-C while waiting reaches the caller at once, and a sandbox used on after it works."""
    task: Any = SimpleNamespace()
    fatal = dataclasses.replace(probe, seed=_FATAL, deadline_s=600.0)
    with Sandbox(task, hardware, limits, bench="sandbox_benches:Hang") as sandbox:
        sandbox.run(probe)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        began = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            sandbox.run(fatal)
        timer.join()
        assert time.monotonic() - began < 60
        after: Outcome = sandbox.run(probe)
        assert isinstance(after, Measured)
        assert sandbox.starts == 2
