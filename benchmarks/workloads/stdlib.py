"""Source files of the running Python's standard library: text that is there wherever these programs run."""

from __future__ import annotations

import sysconfig
from pathlib import Path

__all__ = ["stdlib_files"]

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "lib2to3", "idlelib"}


def stdlib_files() -> list[Path]:
    """All of them, tests left out, in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts[:-1]))
