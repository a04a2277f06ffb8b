"""Readings of an accelerator's allocator, on a stand-in for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.trial.device_memory import DeviceMemory


class FakeMemory(SimpleNamespace):
    """As much of torch.accelerator.memory as is read."""

    def __init__(self) -> None:
        super().__init__(free=700, reserved=300, peak=900, retries=5, resets=0)

    def get_memory_info(self, device: torch.device) -> tuple[int, int]:
        return self.free, 2000

    def memory_reserved(self, device: torch.device) -> int:
        return self.reserved

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.peak

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.resets += 1

    def memory_stats(self, device: torch.device) -> Any:
        return {"num_alloc_retries": self.retries}


def test_room_is_what_is_free_and_what_is_held_already() -> None:
    """700 free and 300 reserved: 1000, whatever the device has in all; the peak counts from here."""
    memory = FakeMemory()
    read = DeviceMemory(torch.device("cuda"), memory)
    assert (read.limit_bytes, read.peak_bytes, memory.resets) == (1000, 900, 1)


def test_retries_count_after_the_first_step() -> None:
    """Those of earlier runs and of the first step are no thrashing."""
    memory = FakeMemory()
    read = DeviceMemory(torch.device("cuda"), memory)
    memory.retries = 7
    assert read.retries == 2
    read.first_step_done()
    assert read.retries == 0
    memory.retries = 10
    assert read.retries == 3


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_devices_without_readings_give_none(kind: str) -> None:
    """Nothing is read, nothing is reset."""
    memory = FakeMemory()
    read = DeviceMemory(torch.device(kind), memory)
    assert (read.limit_bytes, read.peak_bytes, read.retries, memory.resets) == (None, None, None, 0)


def test_torch_that_cannot_tell_the_free_memory_gives_no_limit() -> None:
    """The peak is there all the same."""
    memory = SimpleNamespace(
        reset_peak_memory_stats=lambda device: None,
        max_memory_reserved=lambda device: 5,
        memory_stats=lambda device: {},
    )
    read = DeviceMemory(torch.device("xpu"), memory)
    assert (read.limit_bytes, read.peak_bytes, read.retries) == (None, 5, None)
