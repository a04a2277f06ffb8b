"""Ends everything a sandbox started: the child, what it started, and what that left in shared memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from autotune.hardware.process_tree import tree_pids

__all__ = ["end_tree", "members"]

_PATIENCE_S = 10.0
_POLL_S = 0.01
# They clean up shared memory once everybody else is gone, so they get a moment to do that and leave by themselves.
_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
_CLEANERS_GRACE_S = 1.0


def end_tree(child: subprocess.Popen[bytes], directory: Path) -> list[int]:
    """Kills ``child`` and all processes it started, directly or not, and collects its exit status.

    They are found as its descendants, by its session and by their environment (``TMPDIR`` is the sandbox's
    private folder), so that daemons and processes whose parent is dead are among them.

    Args:
        child: May be dead already.
        directory: The sandbox's private folder.

    Returns:
        Processes that could not be ended within ten seconds.
    """
    began = time.monotonic()
    killed: set[int] = {child.pid}
    while True:
        left = members(child.pid, directory) - {child.pid}
        if child.poll() is None:
            left.add(child.pid)
        elapsed_s = time.monotonic() - began
        cleaners = set() if elapsed_s > _CLEANERS_GRACE_S else {other for other in left if _is_cleaner(other)}
        killed |= left
        for other in left - cleaners:
            _kill(other)
        _reap(killed - {child.pid})
        if not left or elapsed_s > _PATIENCE_S:
            break
        time.sleep(_POLL_S)
    _unlink_segments(killed)
    return sorted(left)


def members(pid: int, directory: Path) -> set[int]:
    """Living processes that belong to the sandbox whose child is ``pid``."""
    found = set(tree_pids(pid))
    if sys.platform == "linux":
        marker = b"TMPDIR=" + os.fsencode(directory)
        found |= {other for other in _all_pids() if _session(other) == pid or marker in _environment(other)}
    return {other for other in found if _runs(other)} - {os.getpid()}


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:  # gone meanwhile, or another user's
        return b""


def _stat(pid: int) -> list[bytes]:
    return _read(pid, "stat").rpartition(b")")[2].split()  # the name before may hold spaces and parentheses


def _session(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[3]) if len(fields) > 3 else None


def _environment(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _runs(pid: int) -> bool:
    if sys.platform != "linux":
        return True
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def _is_cleaner(pid: int) -> bool:
    return sys.platform == "linux" and any(name in _read(pid, "cmdline") for name in _CLEANERS)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    except (ProcessLookupError, PermissionError):  # what is not ours to kill is reported as left over
        return


def _reap(pids: Iterable[int]) -> None:
    """Orphans fall to this process where it is the first of its container."""
    if not hasattr(os, "waitpid") or sys.platform == "win32":
        return
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def _unlink_segments(pids: set[int]) -> None:
    """Removes what torch named after one of ``pids`` in ``/dev/shm`` (``torch_<pid>_…``)."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return
    for pid in pids:
        for segment in shared.glob(f"torch_{pid}_*"):
            segment.unlink(missing_ok=True)
