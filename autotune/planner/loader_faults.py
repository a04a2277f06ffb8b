"""Which failed trials are the loader's fault: dead, hanging or starved workers, and the thread that pins memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.measurement import Crashed, Measured, Outcome, OutOfMemory, Rejected, TimedOut

__all__ = ["pinning_fault", "worker_fault", "workers_do_not_run"]

_WORKER = re.compile(
    r"DataLoader worker|Too many open files|items of ancdata|forked subprocess|BlockingIOError: \[Errno \d+\]"
    r"|can't start new thread"
)
_PINNING = re.compile(r"in pin memory thread|Pin memory thread exited|cudaHostAlloc", re.IGNORECASE)
_ENOUGH = 2  # failures with workers and not one success: a third would cost time only
_SHOWN = 200
_RAISED = re.compile(r"^\w[\w.]*(?:Error|Exception|Interrupt)\b.*$", re.MULTILINE)

# The first that matches says what to do about it.
_REMEDIES = (
    (
        re.compile(r"bus error|shared memory|No space left", re.IGNORECASE),
        "shared memory (/dev/shm) ran out; give it more (docker run --shm-size=8g) or return smaller samples",
    ),
    (
        re.compile(r"killed by signal: Killed|\[killed\]"),
        "a worker was killed, most likely for want of memory; hold large data in tensors or arrays, which workers "
        "share, not in lists of Python objects",
    ),
    (
        re.compile(r"re-initialize|forked subprocess"),
        "the dataset uses the accelerator, which forked workers must not; return CPU tensors",
    ),
    (
        re.compile(r"Too many open files|ancdata"),
        "open files ran out; raise the limit (ulimit -n) or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        re.compile(r"BlockingIOError|can't start new thread"),
        "no more processes or threads may be started; raise the limit (ulimit -u, or docker run --pids-limit)",
    ),
)


def worker_fault(outcome: Outcome) -> str | None:
    """Why loader workers made a trial fail, in one line with the remedy where one is known; None: they did not.

    Args:
        outcome: Of a trial.
    """
    if isinstance(outcome, Measured) or not outcome.settings.num_workers:
        return None
    if isinstance(outcome, TimedOut) and outcome.settings.compile_mode is None:
        return f"with {outcome.settings.num_workers} workers there was no answer within {outcome.deadline_s:.0f} s"
    text = _text(outcome)
    if not _WORKER.search(text):
        return None
    remedy = next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), None)
    return f"{remedy} ({_short(text)})" if remedy else _short(text)


def pinning_fault(outcome: Outcome) -> str | None:
    """Why pinning made a trial fail, in one line; None: it did not.

    Args:
        outcome: Of a trial.
    """
    if isinstance(outcome, Measured) or not outcome.settings.pin_memory:
        return None
    text = _text(outcome)
    return f"pinning failed ({_short(text)})" if _PINNING.search(text) else None


def workers_do_not_run(outcomes: Iterable[Outcome], *, at_once: bool = False) -> str | None:
    """Why no trial with loader workers came to its end.

    Args:
        outcomes: Of all trials.
        at_once: Only where further trials with workers need not be made: one worker failed, or two trials did.

    Returns:
        The first reason; None where a trial with workers was measured, or none failed by its workers' fault.
    """
    tried = [one for one in outcomes if one.settings.num_workers]
    if any(isinstance(one, Measured) for one in tried):
        return None
    found = [(one, fault) for one in tried if (fault := worker_fault(one)) is not None]
    if at_once and len(found) < _ENOUGH and not any(one.settings.num_workers == 1 for one, _ in found):
        return None
    return f"workers do not run here: {found[0][1]}" if found else None


def _text(outcome: Outcome) -> str:
    match outcome:
        case OutOfMemory():
            return f"{outcome.message} [{outcome.where}]"  # torch's message may leave the signal to its cause
        case Rejected():
            return f"{outcome.reason}\n{outcome.traceback or ''}"
        case Crashed() | TimedOut():
            return outcome.output_tail
        case _:
            return ""


def _short(text: str) -> str:
    """The message alone: of an exception that a worker sent, its own last line."""
    message = text.split("Traceback (most recent call last):")[0].strip()
    inner = _RAISED.search(text.partition("Original Traceback")[2])
    line = f"{message.splitlines()[0]} {inner[0]}" if inner and message else (message or text).splitlines()[0]
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"
