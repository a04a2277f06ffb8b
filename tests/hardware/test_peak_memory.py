"""Peaks of this process, exact however short they were."""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.hardware import PeakMemory, ResidentPeak, tree_memory_bytes

MIB = 2**20
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def held_for_an_instant(mib: int) -> None:
    bytearray(b"x") * (mib * MIB)


@contextmanager
def address_space(room_bytes: int) -> Iterator[int]:
    """A soft limit this far above the address space in use; gives its size."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + room_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@linux_only
def test_a_short_peak_is_seen() -> None:
    """200 MiB that live for one line: the peak is that much above what is in use."""
    memory = PeakMemory()
    before = tree_memory_bytes(os.getpid())
    with memory:
        held_for_an_instant(200)
    assert memory.limit_bytes is None
    assert memory.peak_bytes is not None
    assert 100 * MIB <= memory.peak_bytes - before <= 230 * MIB


@linux_only
def test_an_earlier_higher_peak_does_not_count() -> None:
    """The mark is put back: 50 MiB after 300 MiB are far less (the kernel may take back idle pages meanwhile)."""
    if not _can_reset():
        pytest.skip("the mark cannot be put back here")
    memory = PeakMemory()
    with memory:
        held_for_an_instant(300)
    first = memory.peak_bytes
    with memory:
        held_for_an_instant(50)
    assert first is not None
    assert memory.peak_bytes is not None
    assert first - memory.peak_bytes >= 200 * MIB


@linux_only
def test_under_a_limit_peak_and_limit_are_on_one_scale() -> None:
    """200 MiB beyond any earlier mark, and 300 more allowed: 300 are left between peak and limit."""
    status = Path("/proc/self/status").read_text()
    size, highest = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) * 1024 for name in ("VmSize", "VmPeak"))
    beyond = highest - size + 200 * MIB
    memory = PeakMemory()
    with address_space(beyond + 300 * MIB), memory:
        mmap.mmap(-1, beyond).close()
    assert memory.limit_bytes is not None
    assert memory.peak_bytes is not None
    assert 290 * MIB <= memory.limit_bytes - memory.peak_bytes <= 310 * MIB


@linux_only
def test_a_peak_below_an_earlier_one_is_none_where_the_mark_stays() -> None:
    """The mark of the address space cannot be put back: a smaller peak is not known, and not made up."""
    memory = PeakMemory()
    with address_space(2000 * MIB):
        with memory:
            held_for_an_instant(800)
        with memory:
            held_for_an_instant(10)
    assert memory.peak_bytes is None
    assert memory.limit_bytes is not None


@linux_only
def test_the_limit_stays_the_same_from_run_to_run() -> None:
    """What is reserved meanwhile does not shift the scale."""
    memory = PeakMemory()
    with address_space(500 * MIB):
        with memory:
            kept = bytearray(b"x") * (50 * MIB)
        first = memory.limit_bytes
        with memory:
            pass
    assert len(kept) == 50 * MIB
    assert memory.limit_bytes == first


def _can_reset() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@linux_only
def test_how_far_memory_rose_above_what_it_is_now() -> None:
    """200 MiB that are gone again, after 300 MiB that do not count."""
    if not _can_reset():
        pytest.skip("the mark cannot be put back here")
    held_for_an_instant(300)
    resident = ResidentPeak()
    resident.start()
    assert resident.excess_bytes() <= 50 * MIB
    held_for_an_instant(200)
    assert 150 * MIB <= resident.excess_bytes() <= 250 * MIB
