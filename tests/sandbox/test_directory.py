"""The private folder: private, short, gone afterwards, and swept up after a killed process."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from autotune.sandbox.directory import PrivateDirectory, remove_leftovers


def test_folder_is_private_and_removed(tmp_path: Path) -> None:
    """Only its owner can enter it, and removing takes all that lies in it."""
    directory = PrivateDirectory(tmp_path)
    assert directory.path.stat().st_mode & 0o777 == 0o700
    (directory.path / "inner").mkdir()
    (directory.path / "inner" / "file").write_text("x")
    assert directory.remove() == []
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_process_is_swept_up(tmp_path: Path) -> None:
    """A folder nobody holds a lock on is removed by the next sandbox; one in use and foreign ones stay."""
    held, dead = PrivateDirectory(tmp_path), PrivateDirectory(tmp_path)
    dead._lock.close()
    foreign, half_made = tmp_path / "other", tmp_path / "autotune-half"
    foreign.mkdir()
    half_made.mkdir()
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([held.path, foreign, half_made])
    assert held.remove() == []


def test_long_temporary_folder_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sockets below the default folder would have too long a path, /tmp is used."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    directory = PrivateDirectory()
    assert directory.path.parent == Path("/tmp")
    assert directory.remove() == []
