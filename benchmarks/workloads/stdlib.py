"""Source files of the running Python's standard library: text that is there wherever these programs run."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

__all__ = ["stdlib_files"]

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "lib2to3", "idlelib"}


def stdlib_files() -> list[Path]:
    """All of them, tests left out, in the order of their names."""
    found: list[Path] = []
    for folder, below, names in os.walk(sysconfig.get_paths()["stdlib"]):
        below[:] = [name for name in below if name not in _LEFT_OUT]  # not even looked into: packages are large
        found += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)
