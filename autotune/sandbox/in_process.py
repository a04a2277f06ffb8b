"""The same bench without a child: for ``isolate=False``, with everything restorable restored afterwards."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from autotune.errors import SandboxError
from autotune.hardware import Hardware, Limits
from autotune.measurement import Outcome, Probe, Rejected
from autotune.sandbox.snapshot import Snapshot
from autotune.task import Facts, Task

__all__ = ["InProcess"]

_KNOWN_LIMITS = (
    "Trials ran in this process: nothing was compiled, nothing ran in a fresh process or could be ended when it hung, "
    "and what user code keeps in other places than tensors, random generators and torch's switches was not put back."
)


class InProcess:
    """Runs the bench in this very process.

    Entering takes a copy of the model's and optimizer's tensors in host memory, of random states, modes and switches;
    leaving puts all of it back, bit for bit, also after Ctrl-C. Only half of the memory is offered to the trials,
    since nothing protects the caller from their running out of it.

    Args:
        task: What is trained; its model is used as it is.
        hardware: As detected.
        limits: What the process may use.
        bench: "module:attribute" of the class that does the work.
    """

    starts = 0
    """There is no child."""
    start_s = 0.0
    warnings = (_KNOWN_LIMITS,)

    def __init__(self, task: Task, hardware: Hardware, limits: Limits, *, bench: str = "autotune.trial:Bench") -> None:
        self._task = task
        self.hardware = hardware.completed()
        """With what only the device itself can say."""
        self._limits = dataclasses.replace(limits, ram_bytes=limits.ram_bytes // 2)
        module, _, name = bench.partition(":")
        self._make: Callable[..., Any] = getattr(importlib.import_module(module), name)
        self._bench: Any = None
        self._snapshot: Snapshot | None = None

    def __enter__(self) -> InProcess:
        self._snapshot = Snapshot.of(self._task)
        try:
            self._bench = self._make(self._task, self.hardware, self._limits)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the bench and puts everything back; may be called again."""
        bench, self._bench = self._bench, None
        snapshot, self._snapshot = self._snapshot, None
        try:
            if bench is not None:
                bench.close()
        finally:
            if snapshot is not None:
                snapshot.restore()

    def describe(self) -> Facts:
        """Runs one small batch and says what the task is.

        Raises:
            TaskError: The task cannot be trained as handed over.
        """
        facts: Facts = self._open_bench.describe()
        return facts

    def run(self, probe: Probe) -> Outcome:
        """Answers ``probe``; a setting that compiles is rejected; ``deadline_s`` and ``fresh`` are not enforced."""
        if probe.settings.compile_mode is not None:
            reason = "Nothing is compiled in the caller's own process (isolate=False)."
            return Rejected(kind=probe.kind, settings=probe.settings, phase="compile", reason=reason)
        began = time.monotonic()
        outcome: Outcome = self._open_bench.run(probe)
        return dataclasses.replace(outcome, cost_s=time.monotonic() - began)

    @property
    def _open_bench(self) -> Any:
        if self._bench is None:
            raise SandboxError("The in-process run is not open.", "Use it in a with statement.")
        return self._bench
