"""What a child prints: a private file, kept short, of which the last lines are shown when the child dies."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["OutputFile"]

_LONGEST_BYTES = 1 << 24
_TAIL_BYTES = 1 << 14
_TAIL_LINES = 40


class OutputFile:
    """The file behind a child's standard output and error.

    Args:
        path: Made new.
    """

    def __init__(self, path: Path) -> None:
        # O_APPEND: after the file is cut to nothing the child goes on at its new end, leaving no hole.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
        self.fd = os.open(path, flags, 0o600)
        self._before = b""

    def keep_short(self) -> None:
        """Gives back the disk of all but the end once it is long: a child that floods its output must not fill it.

        A hole is punched where the system can: the child goes on writing meanwhile, and cutting the file could take
        its last words along.
        """
        status = os.fstat(self.fd)
        if _bytes_on_disk(status) <= _LONGEST_BYTES:
            return
        if not _punch_hole(self.fd, max(0, status.st_size - _TAIL_BYTES)):
            self._before = self._last_bytes()
            os.ftruncate(self.fd, 0)

    def tail(self) -> str:
        """The last lines, at most 40."""
        text = (self._before + self._last_bytes()).decode(errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:])

    def close(self) -> None:
        """Closes the file; its last lines cannot be read after."""
        os.close(self.fd)

    def _last_bytes(self) -> bytes:
        size = os.fstat(self.fd).st_size
        with open(self.fd, "rb", closefd=False) as file:
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES)


def _bytes_on_disk(status: os.stat_result) -> int:
    """Without holes, where the system tells."""
    return min(status.st_size, getattr(status, "st_blocks", status.st_size) * 512)


def _punch_hole(fd: int, length: int) -> bool:
    """Gives back the first ``length`` bytes, the size kept; False where that is not possible (see fallocate(2))."""
    if sys.platform != "linux":
        return False
    keep_size, punch_hole = 1, 2
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return bool(fallocate(fd, keep_size | punch_hole, 0, length) == 0)
