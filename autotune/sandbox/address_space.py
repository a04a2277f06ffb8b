"""A soft limit on the address space, which turns too large an allocation into an exception one can catch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from autotune.hardware.process_tree import tree_memory_bytes
from autotune.measurement import Probe

__all__ = ["address_space_limit", "limit_for"]


def limit_for(probe: Probe, device: str, ram_bytes: int) -> AbstractContextManager[object]:
    """The limit under which ``probe`` runs: none, unless it is a compute probe on a CPU without workers or compile.

    Everything else reserves far more address space than it uses (accelerator contexts, compilers) or spreads over
    several processes, and is bounded by the parent's watchdog alone.

    Args:
        probe: What is about to run.
        device: Where the steps run.
        ram_bytes: What the process tree may hold.
    """
    settings = probe.settings
    plain = probe.kind == "compute" and settings.num_workers == 0 and settings.compile_mode is None
    if not plain or not device.startswith("cpu"):
        return nullcontext()
    return address_space_limit(ram_bytes - tree_memory_bytes(os.getpid()))


@contextmanager
def address_space_limit(room_bytes: int) -> Iterator[None]:
    """Lets this process allocate at most ``room_bytes`` more; allocations beyond fail with a normal exception.

    Does nothing where there is no such limit (Windows) or no room at all (the watchdog's business), and never
    raises a limit that is already lower.

    Args:
        room_bytes: Bytes on top of the address space in use now.
    """
    if sys.platform != "linux" or room_bytes <= 0:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = _address_space_bytes() + room_bytes
    lower = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *lower]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
