from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.hardware.process_tree import (
    io_bytes,
    tree_cpu_s,
    tree_memory_bytes,
    tree_pids,
    tree_resident_bytes,
)

Machine = Callable[[Mapping[str, object]], Path]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
held = bytearray(b"x") * {held}
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start a process that has one child; gives both, and ends both."""
    started: list[subprocess.Popen[str]] = []

    def start(held: int = 1) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", _PARENT.format(held=held)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        lines = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        return process, int((lines - {"up"}).pop())

    yield start
    for process in started:
        process.communicate()


def test_a_tree_is_the_process_and_its_descendants(family: Callable[..., tuple[subprocess.Popen[str], int]]) -> None:
    """Children of children belong to the tree, the process itself stands first."""
    process, child = family()
    assert tree_pids(process.pid) == [process.pid, child]
    own = tree_pids(os.getpid())
    assert own[0] == os.getpid()
    assert {process.pid, child} <= set(own)


def test_readings_of_a_process_that_is_gone_are_empty() -> None:
    """A process that has ended counts as nothing and raises nothing."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert tree_pids(process.pid) == []
    assert tree_memory_bytes(process.pid) == 0
    assert tree_cpu_s(process.pid) == 0
    assert io_bytes(process.pid) is None


def test_memory_is_that_of_the_whole_tree(family: Callable[..., tuple[subprocess.Popen[str], int]]) -> None:
    """A process that holds 64 MB more is 64 MB larger."""
    small, _ = family()
    large, _ = family(held=64_000_000)
    difference = tree_memory_bytes(large.pid) - tree_memory_bytes(small.pid)
    assert 60_000_000 < difference < 80_000_000
    assert tree_memory_bytes(os.getpid()) > tree_memory_bytes(large.pid)


@linux_only
def test_memory_shared_within_the_tree_counts_once(machine: Machine) -> None:
    """The proportional set sizes are added, so a page that two processes share counts half in each."""
    files = {"proc/self/task/1/children": "", "proc/1/task/1/children": "2 3"}
    root = machine(
        {
            **files,
            "proc/1/smaps_rollup": "55-7f [rollup]\nRss: 900 kB\nPss: 500 kB\nPss_Anon: 1 kB",
            "proc/2/smaps_rollup": "55-7f [rollup]\nRss: 900 kB\nPss: 400 kB",
            "proc/3/statm": "100 25 3 1 0 50 0",
        }
    )
    page = os.sysconf("SC_PAGE_SIZE")
    assert sorted(tree_pids(1, root=root)) == [1, 2, 3]
    assert tree_memory_bytes(1, root=root) == 900 * 1024 + 25 * page


def test_cpu_time_of_ended_children_is_kept() -> None:
    """Work done by a child still counts after it was waited for."""
    before = tree_cpu_s(os.getpid())
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    gained = tree_cpu_s(os.getpid()) - before
    if sys.platform == "linux":
        assert gained >= 0.05
    else:
        assert gained >= 0


@linux_only
def test_bytes_read_are_seen(tmp_path: Path) -> None:
    """Reading a file of 5 MB moves ``rchar`` by as much, whoever served it."""
    path = tmp_path / "data"
    path.write_bytes(bytes(5_000_000))
    before = io_bytes(os.getpid())
    path.read_bytes()
    after = io_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert after[0] - before[0] >= 5_000_000
    assert after[1] >= before[1] >= 0


def test_bytes_read_are_null_where_the_system_does_not_say(machine: Machine) -> None:
    """Without ``/proc/<pid>/io`` the answer is null, not 0."""
    root = machine({"proc/self/task/1/children": "", "proc/1/task/1/children": ""})
    assert io_bytes(1, root=root) is None


@linux_only
def test_resident_memory_is_never_less_than_the_proportional_one(family: Any) -> None:
    """Pages shared within the tree count in each process; a process that is gone holds nothing."""
    process, _ = family(held=50 * 2**20)
    proportional = tree_memory_bytes(process.pid)
    assert 50 * 2**20 <= proportional <= tree_resident_bytes(process.pid) + 2**23
    assert tree_resident_bytes(2**22 + 1) == 0
