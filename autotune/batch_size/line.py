"""Memory as a line through sizes that ran: it says what to run next, and never what fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.batch_size.tried import SizeTried

__all__ = ["Line", "filled"]

_NOISE = 1 / 64  # of the memory: allocators reserve in blocks, so smaller differences between readings say nothing
_FILLED = 0.25  # of the memory between the smallest and the largest reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line through two readings, never flatter than readings are noisy."""

    size: int
    bytes: int
    bytes_per_row: float
    limit_bytes: int
    rises: bool
    """Whether the readings differ by more than noise."""

    @classmethod
    def through(cls, tried: Sequence[SizeTried]) -> Line | None:
        """Through the largest size that fits and the largest of at most half of it (else the smallest).

        Args:
            tried: What ran so far.

        Returns:
            The line, or None with fewer than two readings, or without a limit to compare them with.
        """
        readings = {one.size: one.peak_bytes for one in tried if one.fits and one.peak_bytes is not None}
        limit = next((one.limit_bytes for one in reversed(tried) if one.fits and one.limit_bytes), None)
        if len(readings) < 2 or limit is None:
            return None
        last = max(readings)
        first = max((size for size in readings if 2 * size <= last), default=min(readings))
        rise, noise = max(0, readings[last] - readings[first]), _NOISE * limit
        bytes_per_row = (rise + noise) / (last - first)
        return cls(size=last, bytes=readings[last], bytes_per_row=bytes_per_row, limit_bytes=limit, rises=rise > noise)

    def share_at(self, size: int) -> float:
        """Share of the memory that ``size`` should take."""
        return (self.bytes + (size - self.size) * self.bytes_per_row) / self.limit_bytes

    def size_at(self, share: float) -> int:
        """The size that should take this share of the memory; may be zero or less."""
        return self.size + int((share * self.limit_bytes - self.bytes) / self.bytes_per_row)


def filled(largest: SizeTried, tried: Sequence[SizeTried]) -> bool:
    """Whether ``largest`` took so much more memory than the smallest size that readings can be trusted."""
    peaks = [one.peak_bytes for one in tried if one.fits and one.peak_bytes is not None]
    if largest.peak_bytes is None or not largest.limit_bytes:
        return False
    return largest.peak_bytes - min(peaks) >= _FILLED * largest.limit_bytes
