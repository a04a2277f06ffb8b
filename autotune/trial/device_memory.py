"""What the accelerator's caching allocator says about one probe."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["DeviceMemory", "broken_context"]

_WITHOUT_READINGS = ("cpu", "mps")


class DeviceMemory:
    """Peak, room and retries of the allocator of ``device``, from here on.

    Args:
        device: Where the steps run; a CPU, and an accelerator without these readings, gives None everywhere.
        memory: Stands in for ``torch.accelerator.memory``.
    """

    def __init__(self, device: torch.device, memory: Any = None) -> None:
        self._device = device
        self._memory = memory or torch.accelerator.memory
        self._readable = device.type not in _WITHOUT_READINGS
        self._retries_before = 0
        self.limit_bytes = self._room_bytes()
        """What the allocator could reserve in all: what it holds and what is free now."""
        if self._readable:
            self._memory.reset_peak_memory_stats(device)
        self.first_step_done()

    def first_step_done(self) -> None:
        """Counts retries from here: finding room once, while everything is new, is no thrashing."""
        self._retries_before = self._count() or 0

    @property
    def peak_bytes(self) -> int | None:
        """The most the allocator had reserved."""
        return int(self._memory.max_memory_reserved(self._device)) if self._readable else None

    @property
    def retries(self) -> int | None:
        """Times the allocator had to give back its cache to find room."""
        count = self._count()
        return None if count is None else count - self._retries_before

    def _count(self) -> int | None:
        if not self._readable:
            return None
        count = self._memory.memory_stats(self._device).get("num_alloc_retries")
        return None if count is None else int(count)

    def _room_bytes(self) -> int | None:
        read = getattr(self._memory, "get_memory_info", None)  # torch 2.9 lacks it
        if not self._readable or read is None:
            return None
        free, _ = read(self._device)
        return int(free) + int(self._memory.memory_reserved(self._device))


def broken_context(error: Exception) -> bool:
    """Whether the device's context is not to be used again after an error."""
    return type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error)
