"""What each end of a child means to the caller."""

from __future__ import annotations

from typing import Any

import pytest

from autotune import errors
from autotune.errors import AutotuneError, DoesNotFitError, SandboxError, TaskError
from autotune.measurement import Crashed, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.sandbox.child import error_to_json
from autotune.sandbox.deaths import death_error, death_outcome, failed_outcome, remote_error
from autotune.sandbox.process import Death, Exited, Overdue, OverLimit


def _exited(code: int | None, **seen: Any) -> Exited:
    usual = {"output_tail": "bye", "peak_bytes": 10, "kernel_kills": 0, "shm_free_bytes": 2**40}
    return Exited(exit_code=code, **{**usual, **seen})


@pytest.mark.parametrize(
    ("death", "kind", "where"),
    [
        (_exited(-9), Crashed, None),
        (_exited(-9, kernel_kills=1), OutOfMemory, "killed"),
        (_exited(-9, peak_bytes=85), OutOfMemory, "killed"),
        (_exited(-7, shm_free_bytes=0), OutOfMemory, "shared memory"),
        (_exited(-6, output_tail="terminate called after std::bad_alloc"), OutOfMemory, "allocator"),
        (_exited(-11, peak_bytes=85, kernel_kills=1), Crashed, None),
        (_exited(1), Crashed, None),
        (_exited(None), Crashed, None),
        (OverLimit(peak_bytes=120), OutOfMemory, "watchdog"),
        (Overdue(output_tail="bye"), TimedOut, None),
    ],
)
def test_death_becomes_an_outcome(probe: Probe, death: Death, kind: type[Outcome], where: str | None) -> None:
    """Only a kill with evidence of memory is out of memory; what was printed last is kept."""
    outcome = death_outcome(death, probe, 100)
    assert type(outcome) is kind
    assert getattr(outcome, "where", None) == where
    assert getattr(outcome, "output_tail", "bye") == "bye"


@pytest.mark.parametrize(
    ("death", "kind", "text"),
    [
        (_exited(-11), SandboxError, "was ended by SIGSEGV while loading the task. Its last output:\nbye"),
        (_exited(3), SandboxError, "ended with exit code 3"),
        (_exited(None), SandboxError, "stopped answering"),
        (_exited(-9, kernel_kills=2), DoesNotFitError, "Memory ran out"),
        (OverLimit(peak_bytes=2**31), DoesNotFitError, "2.00 of 1.00 GiB"),
        (Overdue(output_tail=""), SandboxError, "did not finish loading the task within 30 s."),
    ],
)
def test_death_outside_of_a_probe_becomes_an_error(death: Death, kind: type[AutotuneError], text: str) -> None:
    """The error says what was going on, how it ended, and what to do."""
    error = death_error(death, "loading the task", 30.0, 2**30)
    assert type(error) is kind
    assert text in error.cause
    assert error.remedy


def test_what_hangs_is_not_sent_into_the_callers_own_process() -> None:
    """A stream that never yields would hang there for ever; what to look at and which time to give is said instead."""
    remedy = death_error(Overdue(output_tail=""), "loading the task", 30.0, 2**30).remedy
    assert "isolate" not in remedy
    assert "first batch" in remedy
    assert "time_budget_s" in remedy


@pytest.mark.parametrize("name", errors.__all__)
def test_own_errors_come_back_as_themselves(name: str) -> None:
    """Class, cause and remedy survive the crossing."""
    error = remote_error(error_to_json(getattr(errors, name)("The cause.", "The remedy.")))
    assert (type(error).__name__, error.cause, error.remedy) == (name, "The cause.", "The remedy.")


def test_foreign_errors_come_back_with_their_traceback() -> None:
    """Any other exception becomes a TaskError that names it; its traceback is the cause."""
    try:
        raise KeyError("label")
    except KeyError as raised:
        error = remote_error(error_to_json(raised))
    assert type(error) is TaskError
    assert "KeyError: 'label'" in error.cause
    assert "test_foreign_errors_come_back" in str(error.__cause__)


def test_bench_that_raises_is_an_outcome(probe: Probe) -> None:
    """An exception while the bench is made again rejects the setting, unless it is about memory."""
    rejected = failed_outcome(error_to_json(ValueError("odd")), probe)
    full = failed_outcome(error_to_json(MemoryError("full")), probe)
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "ValueError: odd"
    assert isinstance(full, OutOfMemory)
    assert full.where == "allocator"
