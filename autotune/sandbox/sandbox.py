"""The sandbox: asks a child process, starts another one when it died, and turns every death into an outcome."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from autotune.errors import SandboxError
from autotune.hardware import Hardware, Limits
from autotune.measurement import Measured, Outcome, OutOfMemory, Probe, Rejected, outcome_from_json
from autotune.sandbox import transport
from autotune.sandbox.child import SURROUNDINGS
from autotune.sandbox.deaths import death_error, death_outcome, failed_outcome, remote_error
from autotune.sandbox.directory import PrivateDirectory
from autotune.sandbox.process import Answer, ChildProcess, not_started
from autotune.sandbox.surroundings import INSIDE, Surroundings, child_environment
from autotune.task import Facts, LoaderParts, Task
from autotune.task.workers import daemonic_refusal, main_refusal, start_method

__all__ = ["Sandbox"]

_COPY_SHARE = 0.25  # of the free RAM: the child holds a second copy of what it touches, and the trials need the rest
_GRACE_S = 3.0  # for a healthy child to end its workers itself, which leaves nothing to clean up


class Sandbox:
    """Runs a bench in a child process that may run out of memory, hang, crash or be killed.

    Use it as a context manager, in a thread that lives on (the child dies with the thread that started it). Leaving
    it ends the child with everything it started and removes every file.

    Args:
        task: What is trained; copied into the child.
        hardware: As detected; the child detects nothing itself.
        limits: What the child's process tree may use.
        start_deadline_s: Longest time for starting the child, and again for describing the task.
        bench: "module:attribute" of the class that does the work in the child, called with (task, hardware, limits,
            fresh=callable that makes another copy of the task). After an answer with its attribute ``poisoned``
            true, the child is not used again.
    """

    def __init__(
        self,
        task: Task,
        hardware: Hardware,
        limits: Limits,
        *,
        start_deadline_s: float = 120.0,
        bench: str = "autotune.trial:Bench",
    ) -> None:
        self._task, self._limits = task, limits
        self.hardware = hardware
        """As handed over; after ``describe`` with what only the device itself can say."""
        self._start_deadline_s, self._bench = start_deadline_s, bench
        self._directory: PrivateDirectory | None = None
        self._environ: dict[str, str] = {}
        self._child: ChildProcess | None = None
        self._used = False
        self._warnings: list[str] = []
        self._described = False
        self.starts = 0
        """Children started so far."""
        self.start_s = 0.0
        """Seconds spent starting them, all together, the copying of the task included."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went less than well, one sentence each."""
        return tuple(self._warnings)

    def __enter__(self) -> Sandbox:
        if INSIDE in os.environ:
            raise SandboxError(
                "autotune was called inside its own isolated process: loading the main file called it again.",
                'Put the call below `if __name__ == "__main__":`.',
            )
        began = time.monotonic()
        try:
            surroundings = self._furnished()
            child = self._launched()  # imports torch while the task is being written
            transport.dump(
                self._task,
                self._open_directory.path,
                limit_bytes=int(_COPY_SHARE * self.hardware.ram_available_bytes),
                main=sys.modules["__main__"] if surroundings.main else None,
            )
            self._load(child)
        except BaseException:
            self._end_child(grace_s=0.0)  # still starting: it would not listen
            self.close()
            raise
        self.start_s += time.monotonic() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child and all it started, and removes every file; may be called again."""
        self._end_child()
        if self._directory is not None:
            self._warnings += self._directory.remove()
            self._directory = None

    def describe(self) -> Facts:
        """Lets the child run one small batch and say what the task is.

        Raises:
            TaskError: The task cannot be trained as handed over; its cause is the traceback in the child.
            DoesNotFitError: Not even the small batch fits in memory.
            SandboxError: The child died or did not answer.
        """
        message = self._exchange(self._living_child(), {"do": "describe"}, "describing the task")
        self.hardware = Hardware.from_json(message["hardware"])
        self._described = True
        return self._with_refusal(Facts.from_json(message["facts"]))

    def run(self, probe: Probe) -> Outcome:
        """Asks the child; a dead one is replaced first, and so is a used one where the probe wants a fresh one.

        Args:
            probe: Its ``deadline_s`` counts from here, the start of a new child excluded.

        Returns:
            What the child measured, or how it died of it. ``cost_s`` is the parent's wall time, a start excluded.

        Raises:
            SandboxError: A new child could not be started.
        """
        if probe.fresh and self._used:
            self._end_child()
        child = self._living_child()
        self._used = True
        began = time.monotonic()
        child.tell({"do": "run", "probe": probe.to_json()})
        answer = child.wait(deadline_s=probe.deadline_s, limit_bytes=self._limits.ram_bytes)
        if isinstance(answer, Answer):
            outcome = self._outcome(answer, probe)
        else:
            outcome = death_outcome(answer, probe, self._limits.ram_bytes)
        return dataclasses.replace(outcome, cost_s=time.monotonic() - began)

    def _outcome(self, answer: Answer, probe: Probe) -> Outcome:
        error = answer.message.get("error")
        if error is not None:
            self._end_child()
            return failed_outcome(error, probe)
        outcome = outcome_from_json(answer.message["outcome"])
        if answer.message["last"]:
            self._end_child()
        if isinstance(outcome, Measured) and answer.peak_bytes:
            seen = outcome.peak_ram_bytes
            # A look at the whole tree from outside sees workers' peaks, but none between two looks. A peak under a
            # limit on the address space is on the scale of that limit.
            exact = seen is not None and outcome.ram_limit_bytes is not None
            return outcome if exact else dataclasses.replace(outcome, peak_ram_bytes=max(seen or 0, answer.peak_bytes))
        if isinstance(outcome, Rejected) and outcome.phase != "compile" and answer.kernel_kills:
            message = f"The kernel killed a process for lack of memory. {outcome.reason}"
            return OutOfMemory(kind=outcome.kind, settings=outcome.settings, where="killed", message=message)
        return outcome

    def _furnished(self) -> Surroundings:
        """Makes the folder, with what the child has to know of this process in it."""
        try:
            self._directory = PrivateDirectory()
            return self._surroundings(self._directory.path)
        except OSError as error:
            raise not_started(error) from error

    def _surroundings(self, directory: Path) -> Surroundings:
        data = getattr(self._task, "data", None)
        surroundings = Surroundings.capture(start_method(data) if isinstance(data, LoaderParts) else None)
        (directory / SURROUNDINGS).write_text(json.dumps(surroundings.to_json()))
        self._environ = child_environment(os.environ, directory)
        return surroundings

    def _launched(self) -> ChildProcess:
        self._child = ChildProcess(self._open_directory.path, self._environ)
        self._used = False
        self._child.tell({"do": "prepare"})
        self.starts += 1
        return self._child

    def _load(self, child: ChildProcess) -> None:
        self._exchange(child, None, "starting")  # the answer to "prepare"
        facts = {"hardware": self.hardware.to_json(), "limits": self._limits.to_json(), "bench": self._bench}
        self._exchange(child, {"do": "start", **facts}, "loading the task")

    def _living_child(self) -> ChildProcess:
        if self._child is not None and not self._child.ended:
            return self._child
        began = time.monotonic()
        child = self._launched()
        self._load(child)
        if self._described:  # else its first probe would do it, and be charged for it
            self._exchange(child, {"do": "describe"}, "describing the task again")
        self.start_s += time.monotonic() - began
        return child

    def _exchange(self, child: ChildProcess, request: Mapping[str, Any] | None, doing: str) -> dict[str, Any]:
        if request is not None:
            child.tell(request)
        answer = child.wait(deadline_s=self._start_deadline_s, limit_bytes=self._limits.ram_bytes)
        if not isinstance(answer, Answer):
            raise death_error(answer, doing, self._start_deadline_s, self._limits.ram_bytes)
        error = answer.message.get("error")
        if error is not None:
            if request is None or request["do"] == "start" or error["memory"]:
                self._end_child()
            raise remote_error(error)
        return answer.message

    @property
    def _open_directory(self) -> PrivateDirectory:
        if self._directory is None:
            raise SandboxError("The sandbox is not open.", "Use it in a with statement.")
        return self._directory

    def _end_child(self, grace_s: float = _GRACE_S) -> None:
        child, self._child = self._child, None
        left = child.finish(grace_s) if child is not None else []
        if left:
            self._warnings.append(f"Processes of the isolated run could not be ended: {', '.join(map(str, left))}.")

    def _with_refusal(self, facts: Facts) -> Facts:
        """What the child cannot see: a daemonic caller, or a main file that the caller's workers would run again."""
        daemonic = daemonic_refusal()
        if daemonic is not None and facts.workers_refused is None:
            return dataclasses.replace(facts, workers_refused=daemonic)
        data = getattr(self._task, "data", None)
        if facts.workers_refused is not None or not isinstance(data, LoaderParts) or start_method(data) == "fork":
            return facts
        refusal = main_refusal(sys.modules["__main__"], uses_main=False)
        if refusal is None:
            return facts
        return dataclasses.replace(facts, workers_refused=f"workers started by {start_method(data)} {refusal}")
