"""One child process from the parent's side: start it, ask it, watch it, end it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from autotune.errors import SandboxError
from autotune.hardware.process_tree import tree_memory_bytes, tree_resident_bytes
from autotune.sandbox.ending import end_tree
from autotune.sandbox.frames import FrameReader, GarbledError, write_frame
from autotune.sandbox.kernel_kills import kernel_kills
from autotune.sandbox.output import OutputFile

__all__ = ["Answer", "ChildProcess", "Death", "Exited", "OverLimit", "Overdue", "Watchdog", "not_started"]

_TICK_S = 0.05
_EXIT_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The child answered."""

    message: dict[str, Any]
    peak_bytes: int
    """Largest memory of the child's process tree that was seen meanwhile."""
    kernel_kills: int
    """Processes the kernel killed for memory meanwhile, in this control group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """The child ended by itself, or the kernel ended it."""

    exit_code: int | None
    """As ``subprocess``: negative for a signal."""
    output_tail: str
    peak_bytes: int
    kernel_kills: int
    """Processes the kernel killed for memory meanwhile, in this control group."""
    shm_free_bytes: int | None
    """Free shared memory at the end; None where there is no ``/dev/shm``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """No answer in time; the child is killed."""

    output_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverLimit:
    """The child's process tree held more memory than allowed; it is killed."""

    peak_bytes: int


Death = Exited | Overdue | OverLimit


class Watchdog:
    """Compares the memory of a process tree with its limit, without using noticeable CPU time itself.

    Args:
        read: Bytes the tree holds now.
        limit_bytes: The most it may hold.
        clock: Seconds, monotonic.
        at_most: Bytes that it cannot hold more than, read for next to nothing; above the limit the exact reading,
            which may be long due otherwise, is made within a second.
    """

    _URGENT_S = 1.0

    # Reading walks all pages of the tree. At most 2 % of one core goes into that, and never less than 0.1 s
    # lies between two readings, in which memory can grow by about 0.5 GB.
    _SHARE = 0.02
    _SHORTEST_S = 0.1

    def __init__(
        self,
        read: Callable[[], int],
        limit_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        at_most: Callable[[], int] = lambda: 0,
    ) -> None:
        self._read, self._clock, self._at_most = read, clock, at_most
        self._limit_bytes = limit_bytes
        self._next_s = self._urgent_s = clock()
        self.peak_bytes = 0

    def breached(self) -> bool:
        """Reads if it is time to; whether the limit was passed."""
        began = self._clock()
        if began >= self._next_s or self._is_urgent(began):
            self.peak_bytes = max(self.peak_bytes, self._read())
            ended = self._clock()
            self._urgent_s = ended + self._URGENT_S
            self._next_s = ended + max(self._SHORTEST_S, (ended - began) / self._SHARE)
        return self.peak_bytes > self._limit_bytes

    def _is_urgent(self, now_s: float) -> bool:
        if now_s < self._urgent_s:
            return False
        self._urgent_s = now_s + self._SHORTEST_S  # cheap, but not free: it goes through /proc
        return self._at_most() > self._limit_bytes


class ChildProcess:
    """A running ``python -m autotune.sandbox``.

    Args:
        directory: The sandbox's private folder; what the child prints goes to a file in it.
        environ: The child's environment.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self.ended = False
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                self._output = OutputFile(directory / "output")
                ours.callback(self._output.close)
                request_read, self._requests = _pipe(theirs, ours)
                answer_read, answer_write = _pipe(ours, theirs)
                self._popen = _start(directory, environ, self._output.fd, (request_read, answer_write))
            except OSError as error:
                raise not_started(error) from error
            ours.pop_all()
        self._answers = FrameReader(answer_read)
        self._own_fds = [self._requests, answer_read]

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends ``message``; a child that is gone is noticed by the next ``wait``."""
        try:
            write_frame(self._requests, message)
        except BrokenPipeError:
            return

    def wait(self, *, deadline_s: float, limit_bytes: int) -> Answer | Death:
        """The child's next answer, or how it came to its end (it is then ended with all it started).

        Any exception, Ctrl-C above all, ends the child too: what it would still answer belongs to nothing.

        Args:
            deadline_s: Seconds from now.
            limit_bytes: What the child's process tree may hold.
        """
        try:
            result = self._wait(time.monotonic() + deadline_s, limit_bytes)
        except BaseException:
            self.end()
            raise
        if not isinstance(result, Answer):
            self.end()
        return result

    def _wait(self, deadline: float, limit_bytes: int) -> Answer | Death:
        kills_before = kernel_kills()
        pid = self._popen.pid
        watchdog = Watchdog(lambda: tree_memory_bytes(pid), limit_bytes, at_most=lambda: tree_resident_bytes(pid))
        while True:
            if watchdog.breached():
                return OverLimit(peak_bytes=watchdog.peak_bytes)
            alive = self._popen.poll() is None  # asked before reading: what it still wrote is read below
            try:
                message = self._answers.read(_TICK_S if alive else 0.0)
            except (EOFError, GarbledError):
                message, alive = None, False
            if message is not None:
                kills = kernel_kills() - kills_before
                return Answer(message=message, peak_bytes=watchdog.peak_bytes, kernel_kills=kills)
            self._output.keep_short()
            if not alive:
                return self._exited(watchdog.peak_bytes, kills_before)
            if time.monotonic() > deadline:
                return Overdue(output_tail=self._output.tail())

    def _exited(self, peak_bytes: int, kills_before: int) -> Exited:
        try:
            exit_code = self._popen.wait(_EXIT_PATIENCE_S)
        except subprocess.TimeoutExpired:  # closed its pipe, or wrote garbage into it, and stays
            exit_code = None
        return Exited(
            exit_code=exit_code,
            output_tail=self._output.tail(),
            peak_bytes=peak_bytes,
            kernel_kills=kernel_kills() - kills_before,
            shm_free_bytes=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
        )

    def finish(self, grace_s: float) -> list[int]:
        """Asks the child to leave, by closing its requests, and ends what is left after ``grace_s``.

        Returns:
            Processes that could not be ended.
        """
        if not self.ended:
            os.close(self._requests)
            self._own_fds.remove(self._requests)
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace_s)
        return self.end()

    def end(self) -> list[int]:
        """Kills the child and all it started, at once.

        Returns:
            Processes that could not be ended.
        """
        if self.ended:
            return []
        left = end_tree(self._popen, self._directory)
        self._close_fds()
        self.ended = True
        return left

    def _close_fds(self) -> None:
        self._output.close()
        while self._own_fds:
            os.close(self._own_fds.pop())


def not_started(error: OSError) -> SandboxError:
    """What to raise where the system refused something that a start needs."""
    few_files = error.errno in (errno.EMFILE, errno.ENFILE)
    remedy = "Allow more open files (ulimit -n), or use" if few_files else "Use"
    return SandboxError(
        f"The isolated process could not be started: {error}.", f"{remedy} isolate=False, with the limits that has."
    )


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """A pipe, each of whose ends is closed with the stack that it belongs to."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _start(
    directory: Path, environ: Mapping[str, str], output_fd: int, fds: tuple[int, int]
) -> subprocess.Popen[bytes]:
    names, inheritance = _inheritable(fds)
    return subprocess.Popen(
        [*_interpreter(), "-m", "autotune.sandbox", *names, str(os.getpid())],
        env=dict(environ),
        cwd=directory,  # -m puts the working directory first on the path: nothing there can hide a module
        stdin=subprocess.DEVNULL,
        stdout=output_fd,
        stderr=output_fd,
        start_new_session=True,
        **inheritance,
    )


def _interpreter() -> list[str]:
    executable = os.fsdecode(spawn.get_executable() or "")
    if not executable:
        remedy = "Name it with multiprocessing.set_executable."
        raise SandboxError("The path of the Python interpreter is not known.", remedy)
    options = ["-B"] * sys.dont_write_bytecode + ["-O"] * sys.flags.optimize
    return [executable, *options, *(f"-W{option}" for option in sys.warnoptions)]


if sys.platform == "win32":

    def _inheritable(fds: tuple[int, int]) -> tuple[list[str], dict[str, Any]]:
        import msvcrt

        handles = [msvcrt.get_osfhandle(fd) for fd in fds]
        for handle in handles:
            os.set_handle_inheritable(handle, True)
        info = subprocess.STARTUPINFO(lpAttributeList={"handle_list": handles})
        return [str(handle) for handle in handles], {"startupinfo": info}

else:

    def _inheritable(fds: tuple[int, int]) -> tuple[list[str], dict[str, Any]]:
        return [str(fd) for fd in fds], {"pass_fds": fds}
