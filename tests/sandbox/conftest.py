"""Fixtures of the sandbox tests: facts about a machine, and the proof that nothing is left behind."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.hardware import Hardware, Limits
from autotune.measurement import Probe
from autotune.settings import Settings

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def hardware() -> Hardware:
    """This machine, as detected."""
    return Hardware.detect()


@pytest.fixture
def limits() -> Limits:
    """Room enough for any of the tests."""
    return Limits(ram_bytes=4 * 2**30, shm_bytes=None, open_files=None)


@pytest.fixture
def probe() -> Probe:
    """A question that takes no time."""
    return Probe(kind="joint", settings=Settings(), deadline_s=120.0)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough to hold the private folder of a sandbox."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> Iterator[Path]:
    """A folder for temporary files of its own; afterwards no process, file, segment or descriptor may be left."""
    if sys.platform != "linux":
        pytest.skip("looks for leftovers in /proc and /dev/shm")
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    descriptors, segments = _descriptors(), _segments()
    yield short_folder
    assert list(short_folder.iterdir()) == []
    assert _descriptors() == descriptors
    assert _processes_in(short_folder) == []
    assert _lasting(segments) == set()


def _descriptors() -> set[str]:
    return {f"{fd}: {_target(fd)}" for fd in os.listdir("/proc/self/fd") if "/proc/" not in _target(fd)}


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return "/proc/ listing itself"


def _segments() -> set[str]:
    return set(os.listdir("/dev/shm"))


def _lasting(before: set[str]) -> set[str]:
    """Segments made meanwhile that stay (other processes make some for an instant)."""
    made = _segments() - before
    deadline = time.monotonic() + 5
    while made and time.monotonic() < deadline:
        time.sleep(0.05)
        made &= _segments()
    return made


def _processes_in(folder: Path) -> list[int]:
    """Living processes whose temporary files would go below ``folder``."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if any(entry.startswith(mark) for entry in environment.split(b"\0")):
            found.append(int(name))
    return found
