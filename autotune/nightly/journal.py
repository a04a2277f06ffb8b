"""What became of each re-tune: a line of the change log where something was written, and always a line of metrics."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock

from autotune.config import TunedConfig
from autotune.config.file import read_content, write_document
from autotune.errors import AutotuneError, BusyError, ConfigError
from autotune.nightly.retuned import Retuned
from autotune.profiles import Key, Profiles, file_mode

__all__ = ["CHANGES", "METRICS", "note", "note_failure", "note_line", "synchronise"]

CHANGES, METRICS = "changes.log", "metrics.jsonl"
"""Beside the configs of a folder; beside a file with its name in front."""


def note(ended: Retuned, store: Profiles, out: Path | None = None) -> None:
    """Writes down what became of a re-tune.

    Args:
        ended: The re-tune.
        store: Where configs are kept.
        out: Plain config to keep equal to the stored one.

    Raises:
        ConfigError: A line or the plain config cannot be written.
    """
    if out is not None:
        synchronise(store, ended.key, out)
    if ended.changed:
        note_line(store, CHANGES, ended.line())
    note_line(store, METRICS, json.dumps(ended.to_json(), allow_nan=False))


def note_failure(name: str, error: AutotuneError, store: Profiles, *, when: str) -> dict[str, Any]:
    """Writes the line of metrics of a re-tune that came to nothing.

    Args:
        name: The task's, for people.
        error: Why.
        store: Where configs are kept.
        when: ISO 8601 date and time.

    Returns:
        What the line holds.
    """
    outcome = "busy" if isinstance(error, BusyError) else "failed"
    line = {"task": name, "outcome": outcome, "reason": str(error), "when": when, "exit_code": error.exit_code}
    note_line(store, METRICS, json.dumps(line, allow_nan=False))
    return line


def synchronise(store: Profiles, key: Key, out: Path) -> None:
    """Makes a plain config equal to the stored one; a file that is equal already is left alone.

    Args:
        store: Where configs are kept.
        key: What it is for.
        out: The file.
    """
    entry = store.entry(key)
    if entry is None:
        return
    document = TunedConfig.from_json(entry.document).to_json()
    if not out.exists() or _content(out) != document:
        write_document(document, out)


def note_line(store: Profiles, name: str, line: str) -> None:
    """Appends a line, whole, to a file of the store.

    Args:
        store: Where configs are kept.
        name: ``CHANGES`` or ``METRICS``.
        line: Without a line end.

    Raises:
        ConfigError: It cannot be written.
    """
    path = store.path / name if store.path.suffix != ".json" else store.path.with_name(f"{store.path.stem}.{name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = file_mode(path.parent)
        with FileLock(path.with_name(f".{path.name}.lock"), mode=mode), _appending(path, mode) as file:
            file.write(f"{line.replace(chr(10), ' ')}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ConfigError(
            f"{str(path)!r} cannot be written: {error.strerror or error}.", "Check the folder."
        ) from error


def _appending(path: Path, mode: int) -> TextIO:
    return open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode))


def _content(path: Path) -> Any:
    try:
        return json.loads(read_content(path))
    except (ConfigError, ValueError):  # not ours any more: it is replaced
        return None
