"""The store of results: a file or a shared folder of configs, keyed by task and machine.

A file is replaced in one go and under a lock, so that two processes that write into one place both land. The last
results of each key are kept. What cannot be read is set aside before anything is written in its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autotune.config.entries import (
    LARGEST_BYTES,
    Entry,
    Key,
    Shelf,
    folder_file,
    parse_shelf,
    read_entries,
    read_shelf,
    shelf_document,
)
from autotune.config.file import NewerConfigError, check_document, replace_file
from autotune.errors import ConfigError

__all__ = ["CACHE_DIR_VARIABLE", "HISTORY", "Key", "Profiles", "file_mode", "user_folder"]

CACHE_DIR_VARIABLE = "AUTOTUNE_CACHE_DIR"
"""Environment variable that names the folder of the user's own store; set but empty: there is none."""

HISTORY = 20
"""Earlier results kept of each key."""

_LOCK_S = 60.0  # a writer holds the lock for milliseconds
_PRIVATE = 0o600


def user_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the user's own store; None where the environment says that there is none.

    Args:
        environ: The environment.
    """
    named = environ.get(CACHE_DIR_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    from platformdirs import user_cache_path

    return user_cache_path("torch-autotune", appauthor=False) / "profiles"


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Profiles:
    """Results in a file (its name ends in ``.json``, or it is one already) or in a folder.

    Nothing is made before the first result is put there. A folder made here is the user's alone; files are as open
    as their folder.
    """

    path: Path
    now: Callable[[], str] = field(default=_now)
    """Date and time as ISO 8601."""
    lock_timeout_s: float = _LOCK_S

    def read(self) -> Shelf:
        """Everything there; nothing where there is no such place.

        Raises:
            ConfigError: A file is damaged as a whole, or of a newer release.
        """
        return read_entries(str(self.path)) if self.path.exists() else Shelf()

    def entry(self, key: Key) -> Entry | None:
        """The entry of exactly this key; None: there is none.

        Args:
            key: What it is for.

        Raises:
            ConfigError: Its file is damaged as a whole, or of a newer release.
        """
        file = self._file(key)
        found = read_shelf(str(file)).entries if file.exists() else ()
        return next((entry for entry in found if entry.key == key), None)

    def put(self, key: Key, document: Mapping[str, Any], *, why: str = "", **facts: Any) -> None:
        """Makes a config the one in force for a key; what was in force becomes the first of its history.

        Args:
            key: What it is for.
            document: As ``TunedConfig.to_json`` gives it.
            why: One line for people.
            **facts: Further JSON values to keep beside it.

        Raises:
            ConfigError: It is no config, cannot be written, or the file is a newer release's; nothing was changed.

        Warns:
            UserWarning: What was there could not be read, and was set aside.
        """
        check_document(dict(document), "the result to be stored")
        result = {"saved": self.now(), "why": why, **facts, "document": dict(document)}

        def changed(results: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
            return (result, *results)[: HISTORY + 1]

        self._change(key, changed)

    def rollback(self, key: Key) -> Mapping[str, Any]:
        """Puts the result before the one in force back in force; called again, the one before that.

        Args:
            key: What it is for.

        Returns:
            The result now in force.

        Raises:
            ConfigError: There is no earlier one, or it cannot be read any more.
        """
        back: list[Mapping[str, Any]] = []

        def changed(results: tuple[Mapping[str, Any], ...]) -> tuple[Mapping[str, Any], ...]:
            earlier = next((one for one in results[1:] if "rolled_back" not in one), None)
            if earlier is None:
                raise ConfigError(f"{str(self.path)!r} holds no earlier result to go back to.", "Tune again instead.")
            check_document(dict(earlier["document"]), str(self.path))
            back.append(earlier)
            rest = [one for one in results[1:] if one is not earlier]
            return (earlier, {**results[0], "rolled_back": self.now()}, *rest)

        self._change(key, changed)
        return back[0]

    def _change(
        self, key: Key, changed: Callable[[tuple[Mapping[str, Any], ...]], tuple[Mapping[str, Any], ...]]
    ) -> None:
        file = self._file(key)
        try:
            self._make(file.parent)
            with self._locked(file):
                shelf, damaged = _what_is_there(file)
                before = next((entry for entry in shelf.entries if entry.key == key), None)
                after = Entry(key=key, results=changed(before.results if before else ()), where=str(file))
                entries = [after if entry is before else entry for entry in shelf.entries]
                content = _content([*entries, *([] if before else [after])], shelf, str(file))
                if damaged is not None:
                    _set_aside(file, damaged, shelf.faults)
                replace_file(file, content, mode=file_mode(file.parent))
        except OSError as error:
            raise ConfigError(
                f"The result cannot be stored in {str(self.path)!r}: {error.strerror or error}.",
                f"Choose a folder that you may write to (for the cache, {CACHE_DIR_VARIABLE}); nothing was changed.",
            ) from error

    def _file(self, key: Key) -> Path:
        path = Path(os.path.realpath(self.path))
        is_file = path.is_file() or (not path.is_dir() and path.suffix == ".json")
        return path if is_file else folder_file(path, key)

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def _locked(self, file: Path) -> Iterator[None]:
        lock = FileLock(file.with_name(f".{file.name}.lock"), timeout=self.lock_timeout_s, mode=file_mode(file.parent))
        try:
            with lock:
                yield
        except Timeout as error:
            raise ConfigError(
                f"The profiles {str(file)!r} are held by another process for more than {self.lock_timeout_s:g} s.",
                "Wait for it, or end it.",
            ) from error


def _what_is_there(file: Path) -> tuple[Shelf, bytes | None]:
    """The file's entries, and its content where part of it cannot be read."""
    content = file.read_bytes() if file.exists() else b""
    if not content:
        return Shelf(), None
    try:
        shelf = parse_shelf(content, str(file))
    except NewerConfigError:
        raise
    except ConfigError as error:
        return Shelf(faults=(error.cause,)), content
    return shelf, content if shelf.faults else None


def _content(entries: list[Entry], shelf: Shelf, where: str) -> bytes:
    try:
        text = json.dumps(shelf_document(entries, shelf.kept), indent=1, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"The result for {where!r} is not JSON ({error}).", "Nothing was changed.") from error
    content = f"{text}\n".encode("utf-8", "backslashreplace")
    if len(content) > LARGEST_BYTES:
        raise ConfigError(
            f"{where!r} would grow beyond {LARGEST_BYTES >> 20} MiB.", "Use a folder; nothing was changed."
        )
    return content


def _set_aside(file: Path, content: bytes, faults: tuple[str, ...]) -> None:
    """Keeps what cannot be read under a name of its own; the same content once."""
    aside = file.with_name(f"{file.name}.damaged-{hashlib.sha256(content).hexdigest()[:12]}")
    if not aside.exists():
        replace_file(aside, content, mode=_PRIVATE)
    warnings.warn(
        f"{faults[0]} What was there is kept as {str(aside)!r}, and a new file was written.", UserWarning, stacklevel=5
    )


def file_mode(folder: Path) -> int:
    """Permissions of a file: as open as its folder is, and never for everybody to write.

    Args:
        folder: That exists.
    """
    return (_PRIVATE | stat.S_IMODE(folder.stat().st_mode)) & 0o664
