"""The file behind a child's output."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.sandbox.output import OutputFile


def test_tail_is_the_last_lines(tmp_path: Path) -> None:
    """At most 40 lines, the last ones, broken text included."""
    file = OutputFile(tmp_path / "out")
    os.write(file.fd, b"\xff first\n" + b"".join(b"line %d\n" % number for number in range(100)))
    lines = file.tail().splitlines()
    file.close()
    assert lines == [f"line {number}" for number in range(60, 100)]


def test_long_output_is_cut_and_goes_on(tmp_path: Path) -> None:
    """Above 16 MiB the file starts anew, without a hole, and the lines before the cut are still in the tail."""
    file = OutputFile(tmp_path / "out")
    os.write(file.fd, b"x" * (1 << 24) + b"\nbefore\n")
    file.keep_short()
    os.write(file.fd, b"after\n")
    assert (tmp_path / "out").stat().st_size == len(b"after\n")
    assert file.tail().splitlines()[-2:] == ["before", "after"]
    file.close()
