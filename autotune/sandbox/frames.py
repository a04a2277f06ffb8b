"""Length-prefixed JSON over a pair of pipes: four bytes of length, most significant first, then UTF-8 text."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["MAX_FRAME_BYTES", "FrameReader", "GarbledError", "write_frame"]

MAX_FRAME_BYTES = 1 << 28
"""A longer frame is not one of ours: something else wrote into the pipe."""

_PREFIX_BYTES = 4
_READ_BYTES = 1 << 16


class GarbledError(Exception):
    """What came through the pipe is not a frame."""


def write_frame(fd: int, message: Mapping[str, Any]) -> None:
    """Writes ``message`` whole; blocks while the pipe is full.

    Raises:
        BrokenPipeError: Nobody reads the other end any more.
    """
    body = json.dumps(message).encode()
    rest = memoryview(len(body).to_bytes(_PREFIX_BYTES, "big") + body)
    while rest:
        rest = rest[os.write(fd, rest) :]


class FrameReader:
    """Reads frames from ``fd`` without ever blocking longer than asked, not even inside a frame.

    Args:
        fd: Read end of a pipe.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = bytearray()

    def read(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """The next message, or None when ``timeout_s`` passed (None: waits for ever).

        Raises:
            EOFError: All write ends are closed.
            GarbledError: The bytes are no frame.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            message = self._take()
            if message is not None:
                return message
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not _readable(self._fd, left_s):
                return None
            chunk = os.read(self._fd, _READ_BYTES)
            if not chunk:
                raise EOFError
            self._pending += chunk

    def _take(self) -> dict[str, Any] | None:
        if len(self._pending) < _PREFIX_BYTES:
            return None
        end = _PREFIX_BYTES + int.from_bytes(self._pending[:_PREFIX_BYTES], "big")
        if end > MAX_FRAME_BYTES:
            raise GarbledError(f"a frame of {end} bytes")
        if len(self._pending) < end:
            return None
        body = bytes(self._pending[_PREFIX_BYTES:end])
        del self._pending[:end]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise GarbledError("not JSON") from error
        if not isinstance(message, dict):
            raise GarbledError(f"a {type(message).__name__} instead of an object")
        return message


if sys.platform == "win32":

    def _readable(fd: int, timeout_s: float | None) -> bool:
        """Polls: Windows cannot wait for an anonymous pipe with a time limit."""
        import _winapi
        import msvcrt

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                available, _ = _winapi.PeekNamedPipe(msvcrt.get_osfhandle(fd), 0)
            except BrokenPipeError:
                return True  # the read that follows sees the end
            if available:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.005)

else:

    def _readable(fd: int, timeout_s: float | None) -> bool:
        poller = select.poll()  # select() cannot watch descriptors above 1023
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))
