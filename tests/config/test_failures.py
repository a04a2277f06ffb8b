"""Trials that failed, named for people."""

from __future__ import annotations

from autotune.config.failures import failed_trials
from autotune.measurement import Chunk, Crashed, Measured, OutOfMemory, Rejected, TimedOut
from autotune.settings import Settings

_BASELINE = Settings()


def test_nothing_is_said_where_nothing_failed() -> None:
    """A run without failures has no such sentence."""
    measured = Measured(kind="joint", settings=_BASELINE, chunks=(Chunk(1, 1.0),))
    assert failed_trials([measured], _BASELINE) == []


def test_each_failure_is_named_by_what_it_changed_and_what_became_of_it() -> None:
    """Out of memory, a hang, a death and a refusal are told apart; equal ones are named once, many are counted."""
    large, workers = Settings(batch_size=512), Settings(num_workers=2, prefetch_factor=2)
    memory = OutOfMemory(kind="joint", settings=large, where="allocator", message="no room")
    failures = [
        memory,
        memory,
        TimedOut(kind="joint", settings=workers, deadline_s=20.0),
        Crashed(kind="joint", settings=Settings(precision="bf16-mixed"), exit_code=-11),
        Rejected(kind="joint", settings=Settings(channels_last=True), phase="step", reason="odd\nshape."),
        Rejected(kind="joint", settings=Settings(num_threads=1), phase="step", reason="x" * 500),
    ]
    (said,) = failed_trials(failures, _BASELINE)
    assert said.startswith("6 of 6 trials failed")
    assert said.count("batch_size=512: out of memory (allocator)") == 1
    assert "num_workers=2, prefetch_factor=2: not done after 20 s" in said
    assert "precision=bf16-mixed: its process ended with exit code -11" in said
    assert "channels_last=True: odd shape;" in said
    assert said.endswith("and 1 more.")
