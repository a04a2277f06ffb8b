"""What is captured of the caller's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import SandboxError
from autotune.sandbox.surroundings import Surroundings


def test_a_deleted_working_directory_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child could not be started there; nothing but the remedy is said."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SandboxError, match="no longer exists"):
        Surroundings.capture()
    monkeypatch.chdir(tmp_path)
