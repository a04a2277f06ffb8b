"""``Limits``: how much of the machine a trial may take."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.hardware.machine import Hardware, decode_record

__all__ = ["Limits"]

# What the caller's own process and the rest of the machine keep for growth while trials run.
_RAM_SHARE = 0.9
# What batches under way may fill of RAM, of /dev/shm (others use it too) and of the open files (there are others).
_LOADING_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds for one child and all its descendants."""

    ram_bytes: int
    """What the child's process tree may use."""
    shm_bytes: int | None
    """What its loader workers may hold in shared memory; None: no such bound."""
    open_files: int | None
    """Files one of its processes may hold open; None: no such bound."""

    @classmethod
    def of(cls, hardware: Hardware) -> Limits:
        """90 % of the RAM that was available, and shared memory and open files as they are."""
        return cls(
            ram_bytes=int(_RAM_SHARE * hardware.ram_available_bytes),
            shm_bytes=hardware.shm_bytes,
            open_files=hardware.open_files,
        )

    def refusal(self, loading_bytes: int, *, files: int, in_workers: bool, copies_bytes: int = 0) -> str | None:
        """Which limit batches under way would break.

        Args:
            loading_bytes: Of all of them.
            files: That a process holds open for them.
            in_workers: Whether they pass through shared memory.
            copies_bytes: Of the dataset, in all workers together.

        Returns:
            One sentence with the remedy; None where there is room.
        """
        needed = f"batches under way ({loading_bytes:,} bytes)"
        if in_workers and self.shm_bytes is not None and loading_bytes > _LOADING_SHARE * self.shm_bytes:
            remedy = "give it more (docker run --shm-size=8g)"
            return f"{needed} would fill /dev/shm ({self.shm_bytes:,} bytes free); {remedy}"
        if loading_bytes > _LOADING_SHARE * self.ram_bytes:
            return f"{needed} would fill the memory ({self.ram_bytes:,} bytes free)"
        if loading_bytes + copies_bytes > _LOADING_SHARE * self.ram_bytes:
            remedy = "hold its data in tensors, which workers share, or read it from files when it is asked for"
            copies = f"the workers' copies of the dataset ({copies_bytes:,} bytes)"
            return f"{copies} would fill the memory ({self.ram_bytes:,} bytes free); {remedy}"
        if self.open_files is not None and files > _LOADING_SHARE * self.open_files:
            remedy = "raise it (ulimit -n) or call torch.multiprocessing.set_sharing_strategy('file_system')"
            return f"batches under way ({files:,} open files) would reach the limit of {self.open_files:,}; {remedy}"
        return None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON scalars."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limits:
        """The limits ``to_json`` wrote.

        Raises:
            ConfigError: Not such a mapping: a field is missing, unknown, or of another type.
        """
        return decode_record(cls, data)
