"""The private folder of one sandbox, and the removal of folders that killed processes left behind."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["PrivateDirectory", "remove_leftovers"]

_PREFIX = "autotune-"
# multiprocessing puts sockets two levels below TMPDIR; a path of more than 107 bytes (104 on macOS) is refused.
_LONGEST_PARENT = 48


class PrivateDirectory:
    """A folder only this user can enter (mode 0700), held by a file lock while in use.

    The lock tells the folder of a living process from one whose process was killed; ``remove_leftovers``
    deletes the latter.

    Args:
        parent: Where to make it; None: the default for temporary files, or ``/tmp`` where that path is too long.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = _default_parent() if parent is None else parent
        remove_leftovers(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            # Locked before it gets its name, or another process could take it for a leftover in between.
            self._lock = _locked(self.path / "unlocked", create=True)
        except BaseException:
            (self.path / "unlocked").unlink(missing_ok=True)  # without opening anything: there may be no file left
            self.path.rmdir()
            raise
        os.rename(self.path / "unlocked", self.path / "lock")

    def remove(self) -> list[str]:
        """Deletes the folder.

        Returns:
            What could not be deleted, one sentence each.
        """
        self._lock.close()
        failed: list[str] = []

        def note(_function: object, path: str, info: object) -> None:
            reason = info[1] if isinstance(info, tuple) else info
            if not isinstance(reason, FileNotFoundError):
                failed.append(f"The temporary file {path} could not be deleted: {reason}.")

        if sys.version_info >= (3, 12):
            shutil.rmtree(self.path, onexc=note)
        else:
            shutil.rmtree(self.path, onerror=note)
        return failed


def remove_leftovers(parent: Path) -> None:
    """Deletes this user's folders below ``parent`` whose process is gone."""
    for path in parent.glob(f"{_PREFIX}*"):
        lock = path / "lock"
        try:
            with _locked(lock, create=False):
                shutil.rmtree(path)
        except OSError:  # in use, someone else's, just being made, or being removed by another process
            continue


def _default_parent() -> Path:
    default = Path(tempfile.gettempdir())
    short = Path("/tmp")
    too_long = len(os.fsencode(default)) > _LONGEST_PARENT
    return short if too_long and short.is_dir() and os.access(short, os.W_OK | os.X_OK) else default


def _locked(path: Path, *, create: bool) -> IO[bytes]:
    file = path.open("xb" if create else "r+b")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file
