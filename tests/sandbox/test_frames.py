"""Messages through a pipe, whole, in pieces, cut off and garbled."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from autotune.sandbox.frames import FrameReader, GarbledError, write_frame


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Read and write end, closed afterwards."""
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


def test_messages_arrive_in_order(pipe: tuple[int, int]) -> None:
    """Two messages written at once are read one after the other, text and numbers intact."""
    messages = [{"do": "run", "text": "ü\n"}, {"value": 1.5, "list": [1, None, True]}]
    for message in messages:
        write_frame(pipe[1], message)
    reader = FrameReader(pipe[0])
    assert [reader.read(0.0), reader.read(0.0), reader.read(0.0)] == [*messages, None]


def test_half_a_message_does_not_block(pipe: tuple[int, int]) -> None:
    """A message whose end is missing is no message yet; its end completes it."""
    os.write(pipe[1], b'\x00\x00\x00\x08{"a"')
    reader = FrameReader(pipe[0])
    assert reader.read(0.01) is None
    os.write(pipe[1], b": 1}")
    assert reader.read(0.0) == {"a": 1}


def test_end_of_the_pipe_is_told(pipe: tuple[int, int]) -> None:
    """A closed pipe is an end, not a message."""
    os.close(pipe[1])
    with pytest.raises(EOFError):
        FrameReader(pipe[0]).read()


@pytest.mark.parametrize("sent", [b"Traceback (most recent call last)", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x02{{"])
def test_foreign_bytes_are_refused(pipe: tuple[int, int], sent: bytes) -> None:
    """What another writer puts into the pipe is no message and is not taken for one."""
    os.write(pipe[1], sent)
    with pytest.raises(GarbledError):
        FrameReader(pipe[0]).read(0.0)
