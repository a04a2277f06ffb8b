"""What the death of a child, or an exception in it, means to the caller: an outcome of a probe, or an error."""

from __future__ import annotations

import signal
from typing import Any

from autotune import errors
from autotune.errors import AutotuneError, DoesNotFitError, SandboxError, TaskError
from autotune.measurement import Crashed, Outcome, OutOfMemory, Probe, Rejected, TimedOut
from autotune.oom import MemoryKind, exit_is_memory
from autotune.sandbox.process import Death, Exited, Overdue, OverLimit

__all__ = ["RemoteTraceback", "death_error", "death_outcome", "failed_outcome", "remote_error"]

_OVERDUE_REMEDY = (
    "Check that the data yields its first batch and the model runs on it, outside of autotune; where they only need "
    "longer, give a larger time_budget_s."
)


class RemoteTraceback(Exception):
    """The traceback of an exception in the child, shown as the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n\nIn the isolated process:\n{self.args[0]}"


def death_outcome(death: Death, probe: Probe, limit_bytes: int) -> Outcome:
    """What ``probe`` is answered with when the child died of it.

    Args:
        death: How it died.
        probe: The question it was working on.
        limit_bytes: What its process tree was allowed.
    """
    kind, settings = probe.kind, probe.settings
    match death:
        case OverLimit():
            message = f"{death.peak_bytes} bytes in use, {limit_bytes} allowed"
            return OutOfMemory(kind=kind, settings=settings, where="watchdog", message=message)
        case Overdue():
            tail = death.output_tail
            return TimedOut(kind=kind, settings=settings, deadline_s=probe.deadline_s, output_tail=tail)
        case Exited():
            where = _memory_kind(death, limit_bytes)
            if where is not None:
                message = f"The process {_exit_text(death.exit_code)}; {death.peak_bytes} bytes were seen in use."
                return OutOfMemory(kind=kind, settings=settings, where=where, message=message)
            return Crashed(kind=kind, settings=settings, exit_code=death.exit_code, output_tail=death.output_tail)


def _memory_kind(death: Exited, limit_bytes: int) -> MemoryKind | None:
    return exit_is_memory(
        death.exit_code,
        output_tail=death.output_tail,
        tree_bytes=death.peak_bytes,
        limit_bytes=limit_bytes,
        oom_kills=death.kernel_kills,
        shm_free_bytes=death.shm_free_bytes,
    )


def death_error(death: Death, doing: str, deadline_s: float, limit_bytes: int) -> AutotuneError:
    """The error for a child that died outside of a probe.

    Args:
        death: How it died.
        doing: What it was asked to do, such as "loading the task".
        deadline_s: The time it had.
        limit_bytes: What its process tree was allowed.
    """
    remedy = "Use isolate=False to see the failure in this process."
    match death:
        case OverLimit():
            used = f"used {death.peak_bytes / 2**30:.2f} of {limit_bytes / 2**30:.2f} GiB allowed"
            remedy = "Free memory, or pass factories that make less at once."
            return DoesNotFitError(f"The isolated process {used} while {doing}.", remedy)
        case Overdue():
            cause = f"The isolated process did not finish {doing} within {deadline_s:g} s.{_quoted(death.output_tail)}"
            return SandboxError(cause, _OVERDUE_REMEDY)  # in the caller's own process it would only hang
        case Exited():
            cause = f"The isolated process {_exit_text(death.exit_code)} while {doing}."
            if _memory_kind(death, limit_bytes) is not None:
                return DoesNotFitError(f"{cause} Memory ran out.", "Free memory, or pass factories that use less.")
            return SandboxError(cause + _quoted(death.output_tail), remedy)


def remote_error(error: dict[str, Any]) -> AutotuneError:
    """The exception to raise for one that was raised in the child.

    Args:
        error: As ``child.error_to_json`` wrote it.

    Returns:
        One of this package as itself, a lack of memory as ``DoesNotFitError``, anything else as ``TaskError``; the
        traceback in the child is its ``__cause__``.
    """
    raised: AutotuneError
    if error["own"]:
        kind = error["type"] if error["type"] in errors.__all__ else "AutotuneError"
        raised = getattr(errors, kind)(error["cause"], error["remedy"])
    elif error["memory"]:
        raised = DoesNotFitError(f"Out of memory: {_named(error)}", "Free memory, or use a smaller model.")
    else:
        raised = TaskError(f"The task failed in the isolated process: {_named(error)}", "See the traceback above.")
    raised.__cause__ = RemoteTraceback(error["traceback"])
    return raised


def failed_outcome(error: dict[str, Any], probe: Probe) -> Outcome:
    """What ``probe`` is answered with when the bench itself raised, for example while it was made again."""
    if error["memory"]:
        return OutOfMemory(kind=probe.kind, settings=probe.settings, where=error["memory"], message=_named(error))
    return Rejected(
        kind=probe.kind,
        settings=probe.settings,
        phase="build",
        reason=_named(error),
        error_type=error["type"],
        traceback=error["traceback"],
    )


def _named(error: dict[str, Any]) -> str:
    return f"{error['type'].removeprefix('builtins.')}: {error['message']}"


def _exit_text(code: int | None) -> str:
    if code is None:
        return "stopped answering"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _quoted(tail: str) -> str:
    return f" Its last output:\n{tail}\n" if tail.strip() else ""
