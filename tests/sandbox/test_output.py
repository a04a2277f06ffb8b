"""The file behind a child's output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autotune.sandbox import output
from autotune.sandbox.output import OutputFile


def test_tail_is_the_last_lines(tmp_path: Path) -> None:
    """At most 40 lines, the last ones, broken text included."""
    file = OutputFile(tmp_path / "out")
    os.write(file.fd, b"\xff first\n" + b"".join(b"line %d\n" % number for number in range(100)))
    lines = file.tail().splitlines()
    file.close()
    assert lines == [f"line {number}" for number in range(60, 100)]


@pytest.mark.parametrize("punched", [True, False])
def test_long_output_gives_its_disk_back_and_goes_on(
    punched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above 16 MiB hardly any disk stays in use, and the lines before are still in the tail, with and without holes."""
    if not punched:
        monkeypatch.setattr(output, "_punch_hole", lambda fd, length: False)
    file = OutputFile(tmp_path / "out")
    os.write(file.fd, b"x" * (1 << 24) + b"\nbefore\n")
    file.keep_short()
    os.write(file.fd, b"after\n")
    status = (tmp_path / "out").stat()
    assert min(status.st_size, status.st_blocks * 512) < 1 << 20
    assert file.tail().splitlines()[-2:] == ["before", "after"]
    file.close()
