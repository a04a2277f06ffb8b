"""A soft limit on the address space, which turns too large an allocation into an exception one can catch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from autotune.hardware.process_tree import tree_memory_bytes
from autotune.measurement import Probe

__all__ = ["AddressSpace", "address_space_limit"]


class AddressSpace:
    """The limit under which this process runs probes, the same for all of them.

    It is settled at the first one, from what is free then. Settled anew each time it would grow with address space
    that earlier probes left reserved, and a size could pass here that a fresh process has no room for.

    Args:
        device: Where the steps run.
        ram_bytes: What the process tree may hold.
    """

    def __init__(self, device: str, ram_bytes: int) -> None:
        self._device, self._ram_bytes = device, ram_bytes
        self._limit_bytes: int | None = None

    def limited(self, probe: Probe) -> AbstractContextManager[object]:
        """The limit for ``probe``: none, unless it is a compute probe on a CPU without workers or compile.

        Everything else reserves far more address space than it uses (accelerator contexts, compilers) or spreads
        over several processes, and is bounded by the parent's watchdog alone.

        Args:
            probe: What is about to run.
        """
        settings = probe.settings
        plain = probe.kind == "compute" and settings.num_workers == 0 and settings.compile_mode is None
        if not plain or not self._device.startswith("cpu") or sys.platform != "linux":
            return nullcontext()
        if self._limit_bytes is None:
            room_bytes = self._ram_bytes - tree_memory_bytes(os.getpid())
            if room_bytes <= 0:  # the watchdog's business
                return nullcontext()
            self._limit_bytes = _address_space_bytes() + room_bytes
        return address_space_limit(self._limit_bytes)


@contextmanager
def address_space_limit(limit_bytes: int) -> Iterator[None]:
    """Bounds this process's address space; allocations beyond fail with a normal exception.

    Does nothing where there is no such limit (Windows), and never raises a limit that is already lower.

    Args:
        limit_bytes: Bytes in all.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    lower = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([limit_bytes, *lower]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")
