"""The limit on the address space: for which probes, and the same for all of them."""

from __future__ import annotations

import dataclasses
import mmap
import sys

import pytest

from autotune.measurement import Probe
from autotune.sandbox.address_space import AddressSpace, address_space_limit
from autotune.settings import Settings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no such limit elsewhere")

COMPUTE = Probe(kind="compute", settings=Settings())
ROOM_BYTES = 2**40  # nothing in this process will meet it


def soft_limit() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0]


def test_the_limit_does_not_move_with_what_is_reserved_meanwhile() -> None:
    """256 MiB more address space in use: the same limit as before, and none in between."""
    before = soft_limit()
    space = AddressSpace("cpu", ROOM_BYTES)
    with space.limited(COMPUTE):
        first = soft_limit()
    assert soft_limit() == before
    reserved = mmap.mmap(-1, 2**28)
    with space.limited(COMPUTE):
        assert soft_limit() == first != before
    reserved.close()


@pytest.mark.parametrize(
    "probe",
    [
        dataclasses.replace(COMPUTE, kind="joint"),
        dataclasses.replace(COMPUTE, settings=Settings().replace(num_workers=1)),
        dataclasses.replace(COMPUTE, settings=Settings(compile_mode="default")),
    ],
    ids=["joint", "workers", "compiled"],
)
def test_what_reserves_more_than_it_uses_is_not_limited(probe: Probe) -> None:
    """Loaders, workers and compilers are the watchdog's business; so are accelerators, and a process already full."""
    before = soft_limit()
    with AddressSpace("cpu", ROOM_BYTES).limited(probe):
        assert soft_limit() == before
    for space in (AddressSpace("cuda:0", ROOM_BYTES), AddressSpace("cpu", 2**20)):
        with space.limited(COMPUTE):
            assert soft_limit() == before


def test_a_lower_limit_is_never_raised() -> None:
    """What the caller's shell allows stays the bound."""
    with address_space_limit(ROOM_BYTES), address_space_limit(2 * ROOM_BYTES):
        assert soft_limit() == ROOM_BYTES
