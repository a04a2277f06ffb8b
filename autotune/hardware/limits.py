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
