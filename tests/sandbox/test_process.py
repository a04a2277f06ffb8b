"""The watchdog on a fake clock, and the tie between child and parent."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import SandboxError
from autotune.sandbox import Sandbox, process
from autotune.sandbox.directory import remove_leftovers
from autotune.sandbox.process import Watchdog

HERE = Path(__file__).parent


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_watchdog_sees_a_breach_and_keeps_the_peak() -> None:
    """The largest reading decides, also when the memory was given back since."""
    clock, readings = _Clock(), iter([10, 90, 120, 20])
    watchdog = Watchdog(lambda: next(readings), 100, clock)
    seen = []
    for _ in range(4):
        seen.append(watchdog.breached())
        clock.now_s += 1.0
    assert seen == [False, False, True, True]
    assert watchdog.peak_bytes == 120


def test_watchdog_spends_at_most_a_fiftieth_of_a_core() -> None:
    """A reading that takes long is repeated more rarely, a quick one every tenth of a second."""
    clock, taken_s, reads = _Clock(), 0.05, []

    def read() -> int:
        reads.append(clock.now_s)
        clock.now_s += taken_s
        return 1

    watchdog = Watchdog(read, 100, clock)
    while clock.now_s < 110.0:
        watchdog.breached()
        clock.now_s += 0.01
    assert len(reads) == pytest.approx(4, abs=1)
    taken_s = 0.0
    quick = Watchdog(read, 100, clock)
    reads.clear()
    while clock.now_s < 120.0:
        quick.breached()
        clock.now_s += 0.01
    assert len(reads) == pytest.approx(95, abs=10)


def test_watchdog_looks_at_once_where_the_cheap_reading_passes_the_limit() -> None:
    """A slow reading is not due for minutes; memory that may be above the limit is read within a second."""
    clock, cheap, reads = _Clock(), 10, []

    def read() -> int:
        reads.append(clock.now_s)
        clock.now_s += 5.0
        return 150 if cheap > 100 else 10

    watchdog = Watchdog(read, 100, clock, at_most=lambda: cheap)
    assert not watchdog.breached()
    clock.now_s += 10.0
    assert not watchdog.breached()
    assert len(reads) == 1
    cheap = 160
    clock.now_s += 0.2
    assert watchdog.breached()
    assert len(reads) == 2


_PROGRAM = """
import os, signal, types
from autotune.hardware import Hardware, Limits
from autotune.sandbox import Sandbox
limits = Limits(ram_bytes=2**32, shm_bytes=None, open_files=None)
with Sandbox(types.SimpleNamespace(), Hardware.detect(), limits, bench="sandbox_benches:Healthy") as sandbox:
    print(sandbox._child._popen.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child notices only when it is done with its trial")
@pytest.mark.parametrize("spare", range(8))
def test_a_start_without_open_files_to_spare_leaves_nothing(tmp_path: Path, monkeypatch: Any, spare: int) -> None:
    """Wherever the files run out: the error names the limit, no descriptor stays open and no folder behind."""
    resource = pytest.importorskip("resource", reason="limits of open files are those of POSIX")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "_start", _refused)
    before = set(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_lowest_free() + spare, hard))
    try:
        with pytest.raises(SandboxError, match=r"could not be started.*open files.*ulimit -n"):
            Sandbox(object(), SimpleNamespace(), SimpleNamespace()).__enter__()  # type: ignore[arg-type]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert set(os.listdir("/proc/self/fd")) == before
    remove_leftovers(tmp_path)  # what could not be opened could not be deleted either, until now
    assert list(tmp_path.iterdir()) == []


def _refused(*_: Any) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def _lowest_free() -> int:
    free = os.dup(0)
    os.close(free)
    return free


def test_child_of_a_killed_parent_dies(short_folder: Path) -> None:
    """Nothing lives on when the caller is killed outright, and the next sandbox removes its files."""
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(short_folder)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    child = Path("/proc") / done.stdout.strip()
    assert child.name.isdigit(), done.stderr
    deadline = time.monotonic() + 30
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(child)
    assert len(list(short_folder.glob("autotune-*"))) == 1
    remove_leftovers(short_folder)
    assert list(short_folder.iterdir()) == []


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
